"""What the edge's policy costs: tree, cutter, controller and all that belongs to a step, against a draft forward.

Real models, a real verifier process, real sockets; modes take turns on every frame. Every call of the draft model and
of the link is timed, and what is left of a step is the policy's. Reading tokens and their chances off the logits has a
column of its own, because any drafter does that. The headline is CPU time of the deciding thread, which other
processes on the machine do not lengthen; wall time stands beside it. The measure is the median forward of one token in
mode sd.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tqdm import tqdm

from benchmarks.stopwatch import Part, Seconds, Stopwatch, TimedLink, TimedModel, timing
from edge_drafter import (
    Drafter,
    DraftingConfig,
    DraftModel,
    LinkLost,
    Mode,
    PacedModel,
    StepInterrupted,
    StepRequest,
    StepResult,
    grower,
)
from edge_drafter.link import LinkConfig, ZmqLink
from evaluation.experiment.command import add_save, result_name, settings_of, write_result
from evaluation.experiment.questions import add_questions, asked_as, in_words, questions, text_flags
from evaluation.experiment.run import Question
from evaluation.figures import spread
from evaluation.setting import (
    CONNECT_LIMIT_S,
    SILENCE_S,
    add_drafting,
    add_pair,
    add_predictor,
    drafted_as,
    machine,
    verifier,
)
from evaluation.tables import table
from speculation.emulation import IDEAL
from speculation.predictor import Predictor, find
from speculation.profile import DeviceProfile, load_profile
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession
from speculation.wire import Hello

WARM_UP = 2
CAPACITY = 2048
TARGET = 0.1
"""The policy shall cost less than this share of a draft forward."""
MODES = tuple(mode.value for mode in (Mode.SD, Mode.FSD, Mode.PROACTIVE, Mode.PIPELINED, Mode.FULL))


@dataclass(frozen=True)
class StepCost:
    """One step: its draft forwards and tokens, the deciding thread's time by part, and other threads' CPU seconds."""

    forwards: int
    tokens: int
    parts: Mapping[Part, Seconds]
    others_cpu_s: float


class Edge:
    """The edge's parts as `EdgeDecoder` puts them together, on a stopwatch."""

    def __init__(self, options: argparse.Namespace, profile: DeviceProfile, address: str) -> None:
        """Load the draft model and connect. Raises ValueError for files that cannot be used, LinkLost."""
        vlm = load_vlm(options.draft_model, dtype=options.dtype, threads=1)
        folder = find(options.predictor, vlm.folder)
        self._predictor = Predictor.load(folder, vlm.fingerprint) if folder is not None else None
        self._options = options
        self._watch = Stopwatch()
        self.timed = TimedModel(VlmSession(vlm, CAPACITY), self._watch)
        self._model: DraftModel = self.timed
        if profile.draft_s:
            paced = PacedModel(self.timed, profile.draft_s, layers=vlm.num_layers)
            self._model = TimedModel(paced, self._watch, Part.PACE)
        hello = Hello(vlm.tokenizer_fingerprint, vlm.vocabulary)
        conditions = IDEAL.delayed(profile.one_way_s)
        self._link = ZmqLink(LinkConfig(address, hello, conditions=conditions, silent_s=SILENCE_S))
        self._drafters: dict[str, Drafter] = {}
        self._step = 0

    def decode(self, question: Question, mode: str) -> tuple[StepResult, StepCost]:
        """Answer a question and say what that took. Raises LinkLost, StepInterrupted."""
        if not self._link.wait_nominal(CONNECT_LIMIT_S) or self._link.welcome is None:
            raise LinkLost(self._link.why)
        welcome = self._link.welcome
        if mode not in self._drafters:
            stop_below = self._predictor.threshold if self._predictor is not None else 0.0
            config = DraftingConfig.of(mode, self._options.drafting, gamma=self._options.gamma, stop_below=stop_below)
            link = TimedLink(self._link, self._watch)
            self._drafters[mode] = Drafter(
                self._model, link, config, max_draft=welcome.max_draft, predictor=self._predictor
            )
        self._step += 1
        request = StepRequest(
            self._step, question.prompt, question.jpeg, tuple(welcome.eos), self._options.max_tokens
        )  # fmt: skip
        others = time.process_time() - time.thread_time()
        self._watch.restart()
        with timing(self._watch, Part.READ, grower, "Distributions", "propose"):
            result = self._drafters[mode].run(request)
        parts = self._watch.stop()
        others = time.process_time() - time.thread_time() - others
        return result, StepCost(result.stats.draft_forwards, len(result.tokens), parts, max(0.0, others))

    def close(self) -> None:
        """Close the link."""
        self._link.close()


def measure(
    edge: Edge, asked: Sequence[Question], modes: Sequence[str]
) -> tuple[dict[str, list[StepCost]], list[Seconds], int]:
    """Return every mode's step costs, sd's forwards of one token, and on how many frames the modes' tokens differ."""
    costs: dict[str, list[StepCost]] = {mode: [] for mode in modes}
    single: list[Seconds] = []
    different = 0
    warm = asked[:WARM_UP]
    for index, question in enumerate(tqdm([*warm, *asked], unit="frame", disable=None)):
        turn = index % len(modes)
        answers = set()
        for mode in [*modes[turn:], *modes[:turn]]:
            edge.timed.single.clear()
            result, cost = edge.decode(question, mode)
            answers.add(result.tokens)
            if index >= len(warm):
                costs[mode].append(cost)
                single += edge.timed.single if mode == Mode.SD else []
        different += len(answers) > 1 and index >= len(warm)
    return costs, single, different


def figures(costs: Sequence[StepCost], single: Seconds) -> dict[str, Any]:
    """Return one mode's figures: seconds per draft forward as min, median and max over steps, shares of `single`.

    Raises ValueError where nothing was drafted.
    """
    drafted = [cost for cost in costs if cost.forwards]
    if not drafted:
        raise ValueError("no step drafted anything: there is no forward to compare with; raise gamma or max-tokens")

    def per_forward(part: Part, clock: str) -> list[float]:
        return [getattr(cost.parts[part], clock) / cost.forwards for cost in drafted]

    policy = {clock: per_forward(Part.POLICY, clock) for clock in ("cpu", "wall")}
    return {
        "steps": len(drafted),
        "forwards": spread([float(cost.forwards) for cost in drafted]),
        "policy_cpu_s": spread(policy["cpu"]),
        "policy_wall_s": spread(policy["wall"]),
        "share_cpu": spread([each / single.cpu for each in policy["cpu"]]),
        "share_wall": spread([each / single.wall for each in policy["wall"]]),
        "forward_cpu_s": spread(per_forward(Part.FORWARD, "cpu")),
        "read_cpu_s": spread(per_forward(Part.READ, "cpu")),
        "cache_cpu_s": spread(per_forward(Part.CACHE, "cpu")),
        "link_cpu_s": spread(per_forward(Part.LINK, "cpu")),
        "other_threads_cpu_s": spread([cost.others_cpu_s / cost.forwards for cost in drafted]),
    }


def median_forward(single: Sequence[Seconds]) -> Seconds:
    """Return the median forward, each clock by itself. Raises ValueError without any."""
    if not single:
        raise ValueError("mode sd drafted no single token: there is no forward to compare with; raise gamma")
    return Seconds(median(each.wall for each in single), median(each.cpu for each in single))


def report(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table with a row per mode: median (min to max) over steps."""

    def told(values: Mapping[str, float], unit: float) -> str:
        low, mid, high = (unit * values[name] for name in ("min", "median", "max"))
        return f"{mid:.1f} ({low:.1f}-{high:.1f})"

    header = (
        "mode", "forwards", "policy us", "% of a forward", "by the wall %", "reading us", "forward us", "cache us",
        "link us", "link threads us",
    )  # fmt: skip
    rows = [
        (
            mode,
            f"{entry['forwards']['median']:.0f}",
            told(entry["policy_cpu_s"], 1e6),
            told(entry["share_cpu"], 1e2),
            told(entry["share_wall"], 1e2),
            *(
                f"{1e6 * entry[name]['median']:.0f}"
                for name in ("read_cpu_s", "forward_cpu_s", "cache_cpu_s", "link_cpu_s", "other_threads_cpu_s")
            ),
        )
        for mode, entry in entries.items()
    ]
    return table(header, rows)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=(__doc__ or "").splitlines()[0])
    add_pair(line)
    line.add_argument("--profile", default="raw", help="declared delays; raw: none (default: %(default)s)")
    line.add_argument("--steps", type=int, default=20, help="frames, each decoded in every mode (default: 20)")
    line.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES, help="sd is the measure, always there")
    add_drafting(line)
    add_predictor(line)
    add_questions(line)
    add_save(line)
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code: 0, or 2 after one sentence on stderr."""
    options = parser().parse_args(arguments)
    options.modes = list(dict.fromkeys([Mode.SD.value, *options.modes]))
    try:
        if options.steps < 1:
            raise ValueError(f"--steps {options.steps}: give at least 1")
        profile = load_profile(options.profile)
        asked = questions(options.frames, options.steps, options.seed, *asked_as(options))
        flags = ["--profile", profile.name, "--dtype", options.dtype, *text_flags(in_words(options.frames))]
        with verifier(options.target_model, *flags) as address:
            edge = Edge(options, profile, address)
            try:
                costs, forwards, different = measure(edge, asked, options.modes)
            finally:
                edge.close()
        single = median_forward(forwards)
        entries = {mode: figures(each, single) for mode, each in costs.items()}
    except (ValueError, RuntimeError, LinkLost, StepInterrupted) as error:
        print(f"overhead: {error}", file=sys.stderr)
        return 2
    print(
        f"{options.steps} frames ({options.frames}), profile {profile.name}, {options.dtype}, {drafted_as(options)}; "
        f"a forward of one token in sd: median {1e6 * single.cpu:.0f} us CPU, {1e6 * single.wall:.0f} us by the wall "
        f"({len(forwards)} of them)"
    )
    print("per draft forward, CPU time where nothing else is said; median (min-max) over steps")
    print(report(entries))
    above = [mode for mode, entry in entries.items() if entry["share_cpu"]["median"] >= TARGET]
    print(f"{TARGET:.0%} of a forward or more: {', '.join(above) or 'no mode'}")
    print(f"frames on which the modes' tokens differ: {different} of {options.steps}")
    print(machine())
    if options.save:
        save(options, entries, single)
    return 0


def save(options: argparse.Namespace, entries: Mapping[str, Any], single: Seconds) -> None:
    """Write the figures."""
    data = {
        "settings": settings_of(options, "save"),
        "machine": machine(),
        "forward_s": {"cpu": single.cpu, "wall": single.wall},
        "modes": entries,
    }
    write_result(f"{result_name('overhead', options.frames)}_{options.profile}_{options.dtype}", data)


if __name__ == "__main__":
    sys.exit(main())
