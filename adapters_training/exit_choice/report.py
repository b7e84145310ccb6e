"""Measured exits on disk and in words: measured.json, which `select-exits` reads again, and its table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from adapters_training.exit_choice.config import MeasureConfig
from adapters_training.exit_choice.timing import Clock, PassTimes
from adapters_training.exit_choice.verdicts import Verdicts
from speculation.exits import Head

MEASURED_FILE = "measured.json"


class Spread(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Least, median and most of repeated measurements, seconds."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: npt.NDArray[np.float64]) -> Spread:
        """Return the spread of one or more values."""
        return cls(float(values.min()), float(np.median(values)), float(values.max()))

    def __str__(self) -> str:
        return f"{1e3 * self.min:.2f} / {1e3 * self.median:.2f} / {1e3 * self.max:.2f} ms"


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
    token_rate: float
    """Share of the places at which its likeliest token was the target's."""
    confidence: float
    """Mean of its verdicts'."""
    calibration_error: float
    """Mean gap between confidence and agreement over ten bins."""
    lead_s: float
    """Its layer's output before the final verdict."""
    cost_s: float
    """What it adds to a verification."""


class ShortListFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A short list of tokens."""

    tokens: int
    asked: float
    """Coverage that was asked for."""
    covered: float
    """Share of the measured answers' tokens that it has."""
    nbytes: int


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `measure-exits` found, with what, and on what machine."""

    settings: MeasureConfig
    target: str
    """Fingerprint."""
    draft: str
    """Fingerprint."""
    machine: str
    clock: Clock
    num_layers: int
    vocabulary: int
    verifications: int
    tau: float
    short_list: ShortListFigures | None
    verify_s: Spread
    draft_s: Spread
    layer_s: tuple[float, ...]
    head_s: float
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


def machine(device: str = "cpu") -> str:
    """Return what the figures were measured on."""
    import torch

    from speculation.machine import host

    gpu = f", {torch.cuda.get_device_name(device)}" if device.startswith("cuda") else ""
    return f"{host()} at the end{gpu}; torch {torch.__version__}, {torch.get_num_threads()} threads"


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
                    float(judged.token_rate[index]),
                    float(judged.confidence[index, spoke].mean()) if spoke.any() else 0.0,
                    judged.calibration_error(index),
                    times.lead_s(layer),
                    times.cost_s(head, layer),
                )
            )
    return tuple(found)


def report(measured: Measured) -> str:
    """Return the table that the command prints."""
    whole, how = measured.verify_s.median, measured.settings
    lines = [
        f"{measured.verifications} verifications of {how.prompts} prompts, gamma {how.gamma}, tau {measured.tau:.2f}",
        f"verification without exits {measured.verify_s}, one draft forward {measured.draft_s} (min / median / max, "
        f"{measured.clock.value} time)",
    ]
    short = measured.short_list
    if short is not None:
        lines.append(
            f"short list: {short.tokens} of {measured.vocabulary} tokens, {short.nbytes / 1e6:.2f} MB, made to cover "
            f"{short.asked:.1%}, covers {short.covered:.1%} of the measured answers"
        )
    lines.append("layer  head   spoke  agrees  of all  tokens  confident  cal. error  lead            cost")
    for each in measured.exits:
        lines.append(
            f"{each.layer:5d}  {each.head.value:5s} {each.spoke:6.1%} {each.agreement:7.1%} {each.right:7.1%} "
            f"{each.token_rate:7.1%} {each.confidence:10.2f} {each.calibration_error:11.3f}  "
            f"{1e3 * each.lead_s:6.2f} ms {each.lead_s / whole:4.0%}  {1e3 * each.cost_s:6.2f} ms "
            f"{each.cost_s / whole:5.1%}"
        )
    return "\n".join([*lines, measured.machine])
