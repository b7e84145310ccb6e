"""Measure how far trained exits can be trusted, how early they judge and what they cost, and give them a short list.

The draft model proposes gamma tokens at a time behind the target's own answers to held-out prompts, as mode `sd`
decodes; every exit judges each draft as the target does. An exit is right when it commits the target's very tokens.

data: the first question of held-out records, of any kind that `exits` trains on (.json, .jsonl, shards, bags).
writes, into the exits folder:
  exits.json, exits.safetensors   the reliability tables that the verifier uses, and the short list
  measured.json                   agreement, lead and cost of every exit, and this machine's times
  verdicts.safetensors            every exit's verdict in every verification; select-exits reads it

The short list are the most frequent tokens of the target's answers to further prompts, which are not measured.

example:
  python -m adapters_training measure-exits --target models/target --draft models/draft --exits out/exits \\
      --held-out out/held-out

time: about a third of a second a prompt for the embedded pair on one CPU core; 300 prompts, two minutes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adapters_training.devices import machine, resolved
from adapters_training.exit_choice.report import MeasureConfig, Measured, ShortListFigures, exit_figures, report
from adapters_training.exit_choice.timing import time_forward
from adapters_training.exit_choice.verdicts import Prompt, count_tokens, measure, short_list
from adapters_training.settings import Command
from adapters_training.sources import USER, BadRecord
from adapters_training.sources.mixture import open_mixture
from speculation.exits import ExitFiles, ExitHeads, Head
from speculation.vlm.folder import find_model
from speculation.vlm.inputs import prepare
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from speculation.vlm.settings import Quantisation


def _run(config: MeasureConfig) -> int:
    """Run the command. Raises ValueError, in one sentence, for what cannot be measured."""
    config = resolved(config)
    ExitFiles.read(Path(config.exits))
    target, draft = (find_model(each, allow_download=config.allow_download) for each in (config.target, config.draft))
    listed, asked = held_out_prompts(config, target)
    vlm = load_vlm(target, config)
    heads = ExitHeads.load(Path(config.exits), vlm, Head.FULL)
    draft_vlm = load_vlm(draft, config, quantisation=Quantisation.NONE.value)
    print(report(measure_into(vlm, heads, draft_vlm, listed, asked, config)))
    return 0


def held_out_prompts(config: MeasureConfig, target: Path) -> tuple[list[Prompt], list[Prompt]]:
    """Return the prompts for the short list and those to measure, none in both, the latter whatever the former are.

    Raises ValueError for data that cannot be read or are too few.
    """
    images = Path(config.images) if config.images else None
    mixture = open_mixture(config.held_out, "held-out", images, target=target)
    count = config.prompts + (config.list_prompts if config.coverage else 0)
    rng = random.Random(config.seed)
    found: list[Prompt] = []
    for index in mixture.order(config.seed, 0).tolist():
        if len(found) == count:
            break
        try:
            sample = mixture.sample(index, rng)
        except BadRecord:
            continue
        text = next(turn.text for turn in sample.turns if turn.role == USER)
        found.append((text, sample.image.read_bytes() if isinstance(sample.image, Path) else sample.image))
    if len(found) < count:
        raise ValueError(
            f"--held-out has {len(found)} usable records, {count} are needed (--prompts and --list-prompts): "
            "give more data or ask for fewer"
        )
    return found[config.prompts :], found[: config.prompts]


def measure_into(
    vlm: Vlm, heads: ExitHeads, draft: Vlm, listed: Sequence[Prompt], asked: Sequence[Prompt], config: MeasureConfig
) -> Measured:
    """Give exits a short list and reliability tables, and write them with all figures into `config.exits`.

    `listed` prompts make the short list (none: the exits get none), `asked` are measured. Raises ValueError as
    `measure` does; the folder is written at the end only.
    """
    heads.set_short_list(None)
    if listed:
        counts = count_tokens(vlm, listed, config.max_tokens, config.capacity)
        heads.set_short_list(short_list(counts, config.coverage, always=vlm.eos).tolist())
    verdicts = measure(
        vlm, heads, draft, asked, gamma=config.gamma, max_tokens=config.max_tokens, capacity=config.capacity
    )
    for head, judged in verdicts.by_head.items():
        heads.set_reliability(judged.tables(verdicts.layers), head)
    context = len(prepare(vlm, *asked[0]).ids)
    times = time_forward(vlm, heads, drafted=config.gamma, context=context, repeats=config.repeats)
    draft_times = time_forward(draft, drafted=0, context=context, repeats=config.repeats)
    short = heads.short_list
    figures = short and ShortListFigures(len(short), config.coverage, verdicts.covered(short.ids), short.nbytes)
    measured = Measured(
        settings=config,
        target=vlm.fingerprint,
        draft=draft.fingerprint,
        machine=machine(str(vlm.device)),
        clock=times.clock,
        num_layers=vlm.num_layers,
        vocabulary=vlm.vocabulary,
        verifications=len(verdicts.committed),
        tau=float(verdicts.committed.mean()),
        short_list=figures or None,
        verify_s=float(np.median(times.forward)),
        draft_s=float(np.median(draft_times.forward)),
        exits=exit_figures(verdicts, times),
    )
    folder = Path(config.exits)
    heads.save(folder)
    verdicts.save(folder)
    measured.save(folder)
    return measured


COMMAND = Command(
    "measure-exits", "measure reliability, lead and cost of trained exits; make their short list", __doc__,
    MeasureConfig, _run,
)  # fmt: skip
