"""What a way to draw answers costs on the wire: bytes per round, acceptance and time, over real sockets.

Every way (greedy, coupled, point-mass, and rejection sampling in its three wire forms) has a session of its own at one
verifier; they take turns on every frame. What a round costs upwards is a mode's bytes less those of `cloud`, which
sends nothing but the frame, both as the socket counted them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from tqdm import tqdm

from edge_drafter import Mode, StepResult
from edge_drafter.decoder import EdgeConfig, EdgeDecoder
from edge_drafter.reply import AnswerLate, VerifierLost
from evaluation.experiment.command import result_name, settings_of, write_result
from evaluation.experiment.questions import add_questions, check_prompts, in_words, text_flags, warmed_up
from evaluation.experiment.run import Question
from evaluation.figures import median_interval, summary
from evaluation.plots import WIDTH, add_outputs, keep, plain
from evaluation.setting import CONNECT_LIMIT_S, SILENCE_S, add_link, add_pair, machine, verifier
from evaluation.tables import table
from speculation.emulation import load_link
from speculation.profile import load_profile
from speculation.sampling import GREEDY, Rule, SamplingSettings
from speculation.vlm.load import load_vlm

WARM_UP = 1
PLAIN = (Mode.SD, Mode.FSD)
FREE = (Mode.SD, Mode.FSD, Mode.FULL)
"""Modes of ways that take trees and idle decoding, too."""


@dataclass(frozen=True)
class Way:
    """A way to draw answers and the modes that it goes with."""

    settings: SamplingSettings

    @property
    def name(self) -> str:
        """The rule, or greedy."""
        return GREEDY.text if self.settings.greedy else self.settings.rule.value

    @property
    def modes(self) -> tuple[Mode, ...]:
        """What is measured: linear drafts, and trees where the rule takes them; the target alone once of each kind."""
        base = (Mode.CLOUD,) if self.settings.rule is Rule.COUPLED else ()
        return base + (PLAIN if self.settings.rule.rejects else FREE)

    @property
    def base(self) -> str:
        """The arm that it is compared with: the target alone, greedy or drawn."""
        return f"{GREEDY.text if self.settings.greedy else Rule.COUPLED.value} {Mode.CLOUD.value}"


def ways(options: argparse.Namespace) -> list[Way]:
    """Return the ways to compare. Raises ValueError, naming the option."""
    drawn = [
        SamplingSettings(options.temperature, options.top_k, options.top_p, rule, options.keep)
        if rule is Rule.SPARSE
        else SamplingSettings(options.temperature, options.top_k, options.top_p, rule)
        for rule in Rule
    ]
    return [Way(GREEDY), *map(Way, drawn)]


def measure(
    edges: Mapping[Way, EdgeDecoder],
    before: Sequence[Question],
    asked: Sequence[Question],
    leave_out: Sequence[Mode] = (),
) -> dict[str, list[StepResult]]:
    """Return the results of every way in each of its modes, "way mode", taking turns on every frame.

    `before` is decoded first and not counted.
    """
    arms = [
        (f"{way.name} {mode.value}", edge, mode)
        for way, edge in edges.items()
        for mode in way.modes
        if mode not in leave_out
    ]
    for _, edge, mode in arms:
        for question in before:
            edge.decode(question.prompt, question.jpeg, mode=mode.value)
    results: dict[str, list[StepResult]] = {name: [] for name, _, _ in arms}
    for index, question in enumerate(tqdm(asked, unit="frame", disable=None)):
        turn = index % len(arms)
        for name, edge, mode in [*arms[turn:], *arms[:turn]]:
            results[name].append(edge.decode(question.prompt, question.jpeg, mode=mode.value))
    return results


def compare(ways: Sequence[Way], results: Mapping[str, Sequence[StepResult]]) -> dict[str, dict[str, Any]]:
    """Return the figures of every arm, with bytes per round and how much faster than the target alone, per token."""
    bases = {way.name: way.base for way in ways}
    found = {}
    for name, entries in results.items():
        alone = results[bases[name.split()[0]]]
        stats = [entry.stats for entry in entries]
        entry = summary(stats)
        rounds = sum(each.rounds for each in stats)
        frame_up = sum(each.stats.bytes_up for each in alone)
        judged = sum(each.accepted for each in stats)
        entry |= {
            "bytes_up_per_round": max(0.0, sum(each.bytes_up for each in stats) - frame_up) / rounds,
            "bytes_down_per_round": sum(each.bytes_down for each in stats) / rounds,
            "accepted_per_round": judged / rounds,
            "fetches_per_round": sum(each.fetches for each in stats) / rounds,
            "per_token_ratio_to_cloud": median_interval(
                [one.stats.per_token_s / two.stats.per_token_s for one, two in zip(alone, entries, strict=True)]
            ),
        }
        found[name] = entry
    return found


def report(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table with a row per way and mode."""
    header = (
        "way and mode", "ms/token min", "median", "max", "x cloud", "interval", "tau", "accepted/round", "hits",
        "B up/round", "B down/round", "fetches/100 rounds",
    )  # fmt: skip
    rows = []
    for name, each in figures.items():
        low, middle, high = each["per_token_ratio_to_cloud"]
        rows.append(
            (
                name,
                *(f"{1e3 * each['per_token_s'][key]:.1f}" for key in ("min", "median", "max")),
                f"{middle:.2f}",
                f"{low:.2f}-{high:.2f}",
                f"{each['tau']:.2f}",
                f"{each['accepted_per_round']:.2f}",
                f"{each['hit_rate']:.0%}",
                f"{each['bytes_up_per_round']:.0f}",
                f"{each['bytes_down_per_round']:.0f}",
                f"{100 * each['fetches_per_round']:.1f}",
            )
        )
    return table(header, rows)


def draw(figures: Mapping[str, Mapping[str, Any]], vocabulary: int, drawn: str) -> Figure:
    """Return a picture of the bytes per round of `sd` by way to draw, up and down."""
    names = [name for name in figures if name.endswith(f" {Mode.SD.value}")]
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for shift, key, colour, label in (
        (-0.19, "bytes_up_per_round", "#4c78a8", "up: drafts"),
        (0.19, "bytes_down_per_round", "#f58518", "down: commits"),
    ):
        values = [figures[name][key] for name in names]
        places = [row + shift for row in range(len(names))]
        axes.barh(places, values, 0.36, color=colour, label=label)
        for place, value in zip(places, values, strict=True):
            axes.text(value * 1.06, place, f"{value:,.0f} B", va="center", fontsize=9)
    axes.set_yticks(range(len(names)), [name.split()[0] for name in names])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(10, 4.0 * max(figures[name]["bytes_up_per_round"] for name in names))
    axes.set_xlabel("bytes per round, as the socket counted them")
    axes.set_title(f"What a round of sd costs on the wire ({drawn}, {vocabulary} tokens in the vocabulary)")
    plain(axes, "x")
    axes.legend(loc="lower right")
    return figure


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="python -m benchmarks.sampling", description=(__doc__ or "").splitlines()[0])
    add_pair(line)
    line.add_argument("--steps", type=int, default=24, help="frames, each in every way and mode (default: 24)")
    line.add_argument("--temperature", type=float, default=0.7)
    line.add_argument("--top-k", type=int, default=0)
    line.add_argument("--top-p", type=float, default=1.0)
    line.add_argument("--keep", type=int, default=32, help="tokens of the head that sparse sends down (default: 32)")
    line.add_argument("--gamma", type=int, default=4, help="draft tokens per verification (default: 4)")
    line.add_argument("--profile", default="raw", help="declared delays; raw: none (default: %(default)s)")
    add_link(line)
    add_questions(line)
    add_outputs(line)
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code: 0, or 2 after one sentence on stderr."""
    options = parser().parse_args(arguments)
    try:
        if options.steps < 1:
            raise ValueError(f"--steps {options.steps}: give at least 1")
        if not options.temperature > 0.0:
            raise ValueError(f"--temperature {options.temperature:g}: give more than 0; greedy is compared in any case")
        compared = ways(options)
        profile, link = load_profile(options.profile), load_link(options.link)
        count = min(2, options.steps) if options.quick else options.steps
        before, asked = warmed_up(options, count, WARM_UP)
        words = in_words(options.frames)
        flags = ("--profile", profile.name, "--dtype", options.dtype, *text_flags(words))
        vlm = load_vlm(options.draft_model, dtype=options.dtype)
        check_prompts(vlm, [*before, *asked], options.max_tokens)
        with verifier(options.target_model, *flags) as address, ExitStack() as opened:
            edges = {}
            for way in compared:
                config = EdgeConfig(
                    options.draft_model, address, Mode.SD.value, profile.name, gamma=options.gamma,
                    max_tokens=options.max_tokens, resume_s=CONNECT_LIMIT_S, silence_s=SILENCE_S, link=link.name,
                    sampling=way.settings.text, seed=options.seed, text_only=words,
                )  # fmt: skip
                edge = EdgeDecoder(config, vlm=vlm)
                opened.callback(edge.close)
                edges[way] = edge
            results = measure(edges, before, asked, (Mode.FSD, Mode.FULL) if options.quick else ())
    except (ValueError, RuntimeError, VerifierLost, AnswerLate) as error:
        print(f"sampling: {error}", file=sys.stderr)
        return 2
    figures = compare(compared, results)
    drawn = f"temperature {options.temperature:g}"
    print(
        f"{count} frames ({options.frames}), {drawn}, gamma {options.gamma}, {options.dtype}, profile {profile.name}, "
        f"link {link.name or 'none'}; {vlm.vocabulary} tokens in the vocabulary"
    )
    print(report(figures))
    print(machine())
    keep(draw(figures, vlm.vocabulary, drawn), "sampling", options)
    if options.save:
        data = {
            "settings": settings_of(options, "save", "out"),
            "frames": count,
            "machine": machine(),
            "vocabulary": vlm.vocabulary,
            "figures": figures,
        }
        write_result(
            "_".join(filter(None, (result_name("sampling", options.frames), profile.name, link.name, options.dtype))),
            data,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
