"""Command `measure-exits`: how far every trained exit can be trusted, how early it speaks and what it costs."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adapters_training.exit_measuring import Prompt
    from adapters_training.exit_report import Measured
    from speculation.exits import ExitHeads
    from speculation.vlm.load import Vlm

PICTURE_FILE = "reliability.png"
_EPILOG = """
The draft model proposes gamma tokens at a time behind the target's own answers to held-out prompts; every exit judges
each draft as the target does. Written into the exits folder:
  exits.json, exits.safetensors   the reliability tables that the verifier uses, and the short list
  measured.json                   agreement, lead and cost of every exit, times of this machine
  verdicts.safetensors            what every exit said in every verification; select-exits reads it
  reliability.png                 confidence against agreement, an exit a panel

example:
  python -m adapters_training measure-exits --target models/target --draft models/draft --exits out/exits \\
      --held-out out/held-out
Takes about a second a prompt for the embedded pair on one CPU core.
"""


@dataclass(frozen=True)
class MeasureConfig:
    """How to measure. coverage: share of the target's tokens that the short list covers, 0 for none; repeats: forwards
    that are timed; list_prompts: prompts whose answers make the short list and are not measured."""

    data: str
    prompts: int = 200
    list_prompts: int = 100
    coverage: float = 0.99
    gamma: int = 4
    max_tokens: int = 96
    capacity: int = 1024
    repeats: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        limits: dict[str, tuple[float, float, float]] = {
            "prompts": (self.prompts, 1, 1e6), "list-prompts": (self.list_prompts, 1, 1e6),
            "coverage": (self.coverage, 0.0, 1.0), "gamma": (self.gamma, 1, 64),
            "max-tokens": (self.max_tokens, 1, 4096), "capacity": (self.capacity, 16, 1 << 20),
            "repeats": (self.repeats, 1, 10_000),
        }  # fmt: skip
        for name, (value, least, most) in limits.items():
            if not least <= value <= most:
                raise ValueError(f"--{name} {value} is outside {least:g} to {most:g}")


def add_command(commands: Any) -> None:
    """Add the command to the training command line."""
    line = commands.add_parser(
        "measure-exits",
        help="measure reliability, lead and cost of trained exits, and give them a short list",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    line.add_argument("--target", type=Path, required=True, help="model folder")
    line.add_argument("--draft", type=Path, required=True, help="model folder of the draft, with the same tokenizer")
    line.add_argument("--exits", type=Path, required=True, help="folder of trained exits; the results go there")
    line.add_argument("--held-out", required=True, help="frames that were not trained on (command data)")
    for name, kind, text in (
        ("prompts", int, "prompts"),
        ("list-prompts", int, "further prompts, whose answers make the short list"),
        ("coverage", float, "share of the target's tokens that the short list covers; 0: no short list"),
        ("gamma", int, "tokens a draft"),
        ("max-tokens", int, "tokens an answer"),
        ("capacity", int, "cache slots: image, prompt, answer and drafts must fit"),
        ("repeats", int, "forwards that are timed"),
        ("seed", int, "which frames and wordings"),
    ):
        default = getattr(MeasureConfig, name.replace("-", "_"))
        line.add_argument(f"--{name}", type=kind, default=default, help=f"{text} (default: {default})")
    line.add_argument("--device", default="cpu")
    line.add_argument("--dtype", default="float32")
    line.add_argument("--threads", type=int, default=1, help="CPU threads of the models")
    line.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure the exits of a folder. Returns the exit status; raises ValueError for what cannot be measured."""
    config = MeasureConfig(
        options.held_out, options.prompts, options.list_prompts, options.coverage, options.gamma, options.max_tokens,
        options.capacity, options.repeats, options.seed,
    )  # fmt: skip
    listed, asked = held_out_prompts(config)
    from adapters_training.exit_report import report
    from speculation.exits import ExitHeads, Head
    from speculation.vlm.load import load_vlm

    how = {"device": options.device, "dtype": options.dtype, "threads": options.threads}
    vlm = load_vlm(options.target, **how)
    heads = ExitHeads.load(options.exits, vlm, Head.FULL)
    measured = measure_into(options.exits, vlm, heads, load_vlm(options.draft, **how), listed, asked, config)
    print(report(measured))
    return 0


def held_out_prompts(config: MeasureConfig) -> tuple[list[Prompt], list[Prompt]]:
    """Return the prompts for the short list and those to measure, one a frame and none in both, from a folder of
    frames. Raises ValueError where it has too few."""
    from adapters_training import wording
    from adapters_training.evaluate import pick
    from adapters_training.records import read_frames

    count = config.prompts + (config.list_prompts if config.coverage else 0)
    frames = list(read_frames(Path(config.data)))
    if len(frames) < count:
        raise ValueError(
            f"--held-out {config.data}: {len(frames)} frames, {count} are needed (--prompts and --list-prompts); make "
            "more with `python -m adapters_training data --held-out`, or ask for fewer"
        )
    rng = random.Random(config.seed)
    # All frames are picked in one order, so that what is measured does not depend on how many make the list.
    picked = pick(frames, len(frames), config.seed)[:count]
    prompts = [(wording.instruction(task, rng), frame.jpeg) for frame, task in picked]
    return prompts[config.prompts :], prompts[: config.prompts]


def measure_into(
    folder: Path, vlm: Vlm, heads: ExitHeads, draft: Vlm, listed: Sequence[Prompt], asked: Sequence[Prompt],
    config: MeasureConfig,
) -> Measured:  # fmt: skip
    """Give exits a short list and reliability tables, and write them with all figures into `folder`.

    `listed` prompts make the short list (none: the exits get none), `asked` are measured. Raises ValueError as
    `measure` does; the folder is written at the end only.
    """
    from adapters_training.exit_measuring import count_tokens, measure, short_list
    from adapters_training.exit_pictures import draw_reliability
    from adapters_training.exit_report import Measured, ShortListFigures, Spread, exit_figures, machine
    from adapters_training.exit_timing import time_forward
    from speculation.exits import Head
    from speculation.vlm.processing import prepare

    heads.set_short_list(None)
    if listed:
        counts = count_tokens(vlm, listed, config.max_tokens, config.capacity)
        heads.set_short_list(short_list(counts, config.coverage, always=vlm.eos).tolist())
    verdicts = measure(
        vlm, heads, draft, asked, gamma=config.gamma, max_tokens=config.max_tokens, capacity=config.capacity
    )
    for head, heard in verdicts.heard.items():
        heads.set_reliability(heard.tables(verdicts.layers), head)
    context = len(prepare(vlm, *asked[0]).ids)
    times = time_forward(vlm, heads, drafted=config.gamma, context=context, repeats=config.repeats)
    draft_times = time_forward(draft, drafted=0, context=context, repeats=config.repeats)
    short = heads.short_list
    measured = Measured(
        target=vlm.fingerprint,
        draft=draft.fingerprint,
        data=config.data,
        prompts=len(asked),
        gamma=config.gamma,
        max_tokens=config.max_tokens,
        seed=config.seed,
        dtype=str(vlm.dtype).removeprefix("torch."),
        device=vlm.device.type,
        machine=machine(str(vlm.device)),
        clock=times.clock,
        num_layers=vlm.num_layers,
        vocabulary=vlm.vocabulary,
        verifications=len(verdicts.committed),
        tau=float(verdicts.committed.mean()),
        short_list=None
        if short is None
        else ShortListFigures(len(short), config.coverage, verdicts.covered(short.ids), short.nbytes),
        verify_s=Spread.of(times.forward),
        draft_s=Spread.of(draft_times.forward),
        layer_s=tuple(float(each) for each in _medians(times.layers)),
        head_s=float(_medians(times.head)),
        exits=exit_figures(verdicts, times),
    )
    heads.save(folder)
    verdicts.save(folder)
    measured.save(folder)
    heads.use(Head.SHORT if short is not None else Head.FULL)
    title = f"Exits' verdicts on drafts of {config.gamma} tokens, {measured.verifications} verifications"
    draw_reliability(verdicts, title).savefig(folder / PICTURE_FILE, dpi=110)
    return measured


def _medians(values: Any) -> Any:
    import numpy as np

    return np.median(values, axis=0)
