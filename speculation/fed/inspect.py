"""Finds what a fed head's folder is, and which models it goes with, without loading a weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from speculation.features import SCALE_BYTES
from speculation.fed.config import FedConfig
from speculation.fed.files import ENCODER_FILE, HEAD_FILE, read_config
from speculation.vlm.folder import stored_tensors
from speculation.vlm.inspect import FolderReport
from speculation.vlm.memory import gigabytes


@dataclass(frozen=True)
class FedReport:
    """One fed head; `problems` are why it does not go with the models that it was compared with."""

    folder: str
    config: FedConfig
    head_weights: int
    bottleneck_weights: int
    file_bytes: int
    notes: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def bytes_a_token(self) -> int:
        """Bytes that a feature takes on the wire."""
        return SCALE_BYTES + self.config.size


def inspect_head(folder: Path, models: Sequence[FolderReport]) -> FedReport:
    """Return what a folder holds and how it goes with models. Raises ModelFolderError where it is no fed head."""
    config = read_config(folder)
    head, bottleneck = ([*stored_tensors([folder / name])] for name in (HEAD_FILE, ENCODER_FILE))
    notes, problems = list[str](), list[str]()
    for model in models:
        if model.fingerprint == config.target:
            notes.append(f"{model.name} feeds it")
        elif model.tokenizer == config.tokenizer:
            notes.append(f"{model.name} can stand beside it on the robot, for driving without a link")
        else:
            problems.append(f"{model.name} has another tokenizer ({model.tokenizer}, the head's is {config.tokenizer})")
    if not any(model.fingerprint == config.target for model in models):
        problems.append(f"none of these models is the target that feeds it, {config.target}")
    return FedReport(
        str(folder),
        config,
        sum(each.count for each in head),
        sum(each.count for each in bottleneck),
        sum((folder / name).stat().st_size for name in (HEAD_FILE, ENCODER_FILE)),
        tuple(notes),
        tuple(problems),
    )


def lines(report: FedReport) -> list[str]:
    """Return a report as people read it."""
    config = report.config
    layers = ", ".join(map(str, config.layers))
    return [
        f"fed head {report.folder}: one layer of {config.width} ({config.heads} heads, {config.intermediate} inside), "
        f"{report.head_weights / 1e6:.2f} million weights, {gigabytes(report.file_bytes)}, features {config.features}",
        "  it sees no image and has no prefill: it goes on from what the target makes of each token",
        f"  fed after layers {layers} of {config.hidden}, through a bottleneck of "
        f"{report.bottleneck_weights / 1e6:.2f} million weights on the verifier: {report.bytes_a_token} bytes a token, "
        f"of the prompt's last {config.prompt_tokens} and of every committed one",
        f"  drafts {len(config.short_list)} of {config.vocabulary} tokens",
        *(f"  {note}" for note in report.notes),
        *(f"  not usable: {problem}" for problem in report.problems),
    ]
