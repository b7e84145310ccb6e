"""`demo`: simulated Go2, verifier, bridge, executor and navigation as separate processes find one object.

Prints every step, records a bag, and writes a report. Exit status: 0 found, 1 not found, 2 something could not start.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from edge_drafter.question import VerifierLost
from spec_vlm_nav.client import Outcome
from spec_vlm_nav.graph import PROJECT, SIM_GRAPH
from spec_vlm_nav.messages import EDGE_ONLY, FALLBACK, HOLD, AskedPrompt, to_action
from spec_vlm_nav.runner import Runner
from spec_vlm_nav.simulated_go2 import scene_of
from speculation.language.instructions import understand
from speculation.language.prompts import Vocabulary
from speculation.settings import path_flag
from vlm_nav_evaluation.bags.files import BagWriter
from vlm_nav_evaluation.drafting_gain import measure, questions
from vlm_nav_evaluation.graph_options import DECODING, Log, add_graph_flags, prepare
from vlm_nav_evaluation.html_page import Section
from vlm_nav_evaluation.report.run import load_run
from vlm_nav_evaluation.report.tables import decoding_table, step_lines
from vlm_nav_simulation.episode import SUCCESS_GAP
from vlm_nav_simulation.objects import CLASSES, COLOURS

READY_LIMIT_S, POLL_S = 120.0, 0.2
PROMPT = "vlm_nav/prompt"


def add_options(line: argparse.ArgumentParser) -> None:
    """Register the options of `demo`."""
    add_graph_flags(line, SIM_GRAPH, "seed", "difficulty", "layout", "target", "fed_head", *DECODING, seed="3")
    asked = line.add_mutually_exclusive_group()
    asked.add_argument("--instruction", help="given to the robot (default: find the TARGET)")
    asked.add_argument("--say", metavar="SENTENCE", help="given to the robot; the room hides what it names, not TARGET")
    line.add_argument("--time", type=float, default=270.0, help="seconds that the robot has (default: 270)")
    shown = "bag, log and report go here (default: out/demo)"
    line.add_argument("--out", type=path_flag, default=PROJECT / "out" / "demo", help=shown)
    line.add_argument("--no-gain", action="store_true", help="do not ask the run's frames again to compare modes")


class StepPrinter:
    """Prints what is looked for, then each decision once its decoding figures are there, and keeps the figures.

    Figures and decision of a step come on two topics, in either order; a decision may come twice, and before its answer
    is complete.
    """

    def __init__(self) -> None:
        self.stats: list[Any] = []
        self.prompts: dict[int, str] = {}
        """What was asked about a frame, by its stamp (ns)."""
        self._stats: dict[tuple[int, int], Any] = {}
        self._decisions: dict[tuple[int, int], Any] = {}
        self._printed: set[tuple[int, int]] = set()
        self._understood = ""

    def __call__(self, topic: str, message: Any) -> None:
        """Take a message of the graph."""
        if topic == PROMPT:
            asked = AskedPrompt.from_json(message.data)
            self.prompts[asked.stamp_ns] = asked.prompt
            understood = asked.instruction
            if understood != self._understood:
                self._understood = understood
                print(f"Understood: {understood}", flush=True)
        if topic not in ("decoding_stats", "navigation_action"):
            return
        key = message.goal, message.step
        if topic == "decoding_stats":
            self.stats.append(message)
            self._stats[key] = message
        elif message.complete:
            self._decisions.setdefault(key, message)
        decision, stats = self._decisions.get(key), self._stats.get(key)
        if decision is None or key in self._printed or (stats is None and decision.source != FALLBACK):
            return
        self._printed.add(key)
        action = to_action(decision.kind, decision.size)
        text = "HOLD" if decision.kind == HOLD or action is None else action.text
        print(f"step {decision.step:2d}  {text}{' (edge model alone)' if decision.source == EDGE_ONLY else ''}")
        reasoning = [f"reason: {' '.join(decision.reasoning.split())}"] if decision.reasoning else []
        for line in (*reasoning, *(step_lines(stats) if stats is not None else ())):
            print(f"         {line}", flush=True)


def target_of(sentence: str, vocabulary: Vocabulary | None, seed: int) -> str:
    """Return the object that a room must hold so that a sentence can be followed in it.

    Where any colour or class is right, `seed` chooses. Raises ValueError, in one sentence, where none can be hidden.
    """
    known = vocabulary or Vocabulary(tuple(COLOURS), tuple(CLASSES))
    understood = understand(sentence, known)
    colour = understood.colour or known.colours[seed % len(known.colours)]
    return f"{colour} {understood.object_class or known.classes[seed % len(known.classes)]}"


def ask_again(options: argparse.Namespace, prompts: Mapping[int, str]) -> list[Section]:
    """Print what drafting gains on the run that was recorded, and return it as parts of a report."""
    print("asking some of these frames again: cloud alone, sd and full, at declared times", flush=True)
    try:
        gain = measure(questions(load_run(options.out / "bag").decisions, prompts), options)
    except (ValueError, RuntimeError, VerifierLost) as error:
        print(f"not compared: {error}\n")
        return []
    print(f"\n{gain.text()}\n")
    return [gain.section()]


def run(options: argparse.Namespace) -> int:
    """Run the demo and return its exit status. Raises ValueError or StartError, in one sentence, if it cannot."""
    if options.say is not None:
        options.target = target_of(options.say, Vocabulary.load(Path(options.target_model)), options.seed)
    scene = scene_of(options.seed, options.difficulty, options.target, options.layout)
    trace = options.out / "trace.json"
    head = {"fed_head": str(Path(options.fed_head).resolve())} if options.fed_head else {}
    arguments = prepare(SIM_GRAPH, options, trace=str(trace.resolve()), **head)
    # rclpy and OpenGL start only once the ROS domain is chosen and the options are known to be good.
    from vlm_nav_evaluation.nodes.observer import Observer
    from vlm_nav_evaluation.report.command import write_report

    trace.unlink(missing_ok=True)
    instruction = options.say or options.instruction or f"find the {scene.target.text}"
    log, printer = Log(options.out / "log.txt"), StepPrinter()
    with (
        closing(BagWriter(options.out / "bag")) as bag,
        Runner(SIM_GRAPH, arguments, log) as runner,
        Observer(printer, bag) as observer,
    ):
        count = len(SIM_GRAPH.processes)
        drafter = "a fed head drafts" if head else "the draft model drafts"
        print(f"room {scene.seed} ({options.difficulty}), mode {options.mode}, {drafter}; starting {count} processes")
        runner.start()
        runner.wait_until(observer.ready, "all nodes ready", READY_LIMIT_S)
        print(f'instruction: "{instruction}"', flush=True)
        ends = observer.send(instruction, options.time)
        while not ends:
            runner.check()
            time.sleep(POLL_S)
        (end,), truth = ends, observer.truth
    near = bool(truth.get("visible")) and float(truth.get("distance", 9e9)) <= SUCCESS_GAP
    found = end.outcome is Outcome.FOUND and near
    reason = "" if found else f": {end.message}" + ("" if near else f"; {truth.get('distance')} m away")
    verdict = "FOUND" if found else "NOT FOUND"
    headline = f"{verdict} the {scene.target.text} after {end.elapsed_s:.0f} s and {end.actions} actions{reason}"
    walked = f"walked {truth.get('path_length', 0.0):.2f} m, {truth.get('collisions', 0)} collisions"
    print(f"\n{headline}\n{walked}\n\n{decoding_table(printer.stats)}\n")
    kept = trace if trace.exists() else None
    more = [] if options.no_gain else ask_again(options, printer.prompts)
    page = write_report(options.out, options.out / "bag", headline=headline, trace=kept, more=more)
    print(f"report {page}\nbag    {options.out / 'bag'}\nlog    {log.path}")
    return 0 if found else 1
