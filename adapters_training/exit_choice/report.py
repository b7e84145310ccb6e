"""Measured exits on disk and in words: measured.json, which `select-exits` reads again, and its table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from adapters_training.devices import ModelConfig
from adapters_training.exit_choice.timing import Clock, PassTimes
from adapters_training.exit_choice.verdicts import Verdicts
from speculation.exits import Head

MEASURED_FILE = "measured.json"


class MeasureConfig(ModelConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is measured, and how the models are loaded (the draft model is never quantised)."""

    target: Annotated[str, Meta(min_length=1, description="model folder (or hub name)")]
    draft: Annotated[str, Meta(min_length=1, description="model folder of the draft, with the same tokenizer")]
    exits: Annotated[str, Meta(min_length=1, description="folder of trained exits; the results go there")]
    held_out: Annotated[tuple[str, ...], Meta(min_length=1, description="files and folders not trained on")]
    images: Annotated[str, Meta(description="folder that image paths are relative to; none: their file's")] = ""
    prompts: Annotated[int, Meta(ge=1, description="prompts to measure")] = 200
    list_prompts: Annotated[int, Meta(ge=1, description="further prompts, whose answers make the short list")] = 100
    coverage: Annotated[
        float, Meta(ge=0.0, le=1.0, description="share of the target's tokens in the short list; 0: no short list")
    ] = 0.99
    gamma: Annotated[int, Meta(ge=1, le=64, description="tokens a draft")] = 4
    max_tokens: Annotated[int, Meta(ge=1, description="tokens an answer")] = 96
    capacity: Annotated[int, Meta(ge=16, description="cache slots: image, prompt, answer and drafts must fit")] = 1024
    repeats: Annotated[int, Meta(ge=1, description="forwards that are timed")] = 50
    seed: Annotated[int, Meta(ge=0, description="which records and wordings")] = 0


class ExitFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One exit with one head. Rates in 0..1, times in seconds."""

    layer: int
    head: Head
    spoke: float
    """Share of the verifications in which it had a verdict."""
    agreement: float
    """Share of these in which it committed the target's tokens."""
    right: float
    """Share of all verifications in which it did."""
    lead_s: float
    """How long before the final verdict its layer's output is there."""
    cost_s: float
    """What it adds to a verification."""


class ShortListFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A short list of tokens."""

    tokens: int
    asked: float
    """Coverage that was asked for, 0..1."""
    covered: float
    """Share of the measured answers' tokens that it has."""
    nbytes: int


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `measure-exits` found, with what, and on what machine."""

    settings: MeasureConfig
    target: str
    """Fingerprint of the target."""
    draft: str
    """Fingerprint of the draft model."""
    machine: str
    clock: Clock
    num_layers: int
    vocabulary: int
    verifications: int
    tau: float
    short_list: ShortListFigures | None
    verify_s: float
    """Median seconds of a verification without exits."""
    draft_s: float
    """Median seconds of one draft forward."""
    exits: tuple[ExitFigures, ...]

    def save(self, folder: Path) -> None:
        """Write measured.json."""
        text = msgspec.json.format(msgspec.json.encode(self), indent=1)
        (folder / MEASURED_FILE).write_bytes(text + b"\n")

    @classmethod
    def load(cls, folder: Path) -> Measured:
        """Read measured.json. Raises ValueError, in one sentence that names the field."""
        advice = "run `python -m adapters_training measure-exits` on it"
        try:
            return msgspec.json.decode((folder / MEASURED_FILE).read_bytes(), type=cls)
        except OSError:
            raise ValueError(f"exits folder {folder} has no {MEASURED_FILE}; {advice}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"exits folder {folder}: {MEASURED_FILE}: {error}; {advice}") from None

    def of(self, head: Head, layers: Iterable[int] | None = None) -> list[ExitFigures]:
        """Return the figures of a head's exits, ascending, all of them or those at `layers`."""
        wanted = None if layers is None else set(layers)
        return [each for each in self.exits if each.head is head and (wanted is None or each.layer in wanted)]


def exit_figures(verdicts: Verdicts, times: PassTimes) -> tuple[ExitFigures, ...]:
    """Return the figures of every exit with every head that was measured and timed."""
    found = []
    for head, judged in verdicts.by_head.items():
        for index, layer in enumerate(verdicts.layers):
            spoke = judged.spoke[index]
            found.append(
                ExitFigures(
                    layer,
                    head,
                    float(spoke.mean()),
                    float(judged.agreed[index, spoke].mean()) if spoke.any() else 0.0,
                    float(judged.agreed[index].mean()),
                    times.lead_s(layer),
                    times.cost_s(head, layer),
                )
            )
    return tuple(found)


def report(measured: Measured) -> str:
    """Return the table that the command prints."""
    whole, how = measured.verify_s, measured.settings
    lines = [
        f"{measured.verifications} verifications of {how.prompts} prompts, gamma {how.gamma}, tau {measured.tau:.2f}",
        f"verification without exits {1e3 * whole:.2f} ms, one draft forward {1e3 * measured.draft_s:.2f} ms (medians, "
        f"{measured.clock.value} time)",
    ]
    short = measured.short_list
    if short is not None:
        lines.append(
            f"short list: {short.tokens} of {measured.vocabulary} tokens, {short.nbytes / 1e6:.2f} MB, made to cover "
            f"{short.asked:.1%}, covers {short.covered:.1%} of the measured answers"
        )
    lines.append("layer  head   spoke  agrees  of all  lead            cost")
    for each in measured.exits:
        lines.append(
            f"{each.layer:5d}  {each.head.value:5s} {each.spoke:6.1%} {each.agreement:7.1%} {each.right:7.1%} "
            f" {1e3 * each.lead_s:6.2f} ms {each.lead_s / whole:4.0%}  {1e3 * each.cost_s:6.2f} ms "
            f"{each.cost_s / whole:5.1%}"
        )
    return "\n".join([*lines, measured.machine])
