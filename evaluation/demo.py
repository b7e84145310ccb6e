"""`make demo`: simulated Go2, verifier, bridge, executor and navigation as separate processes find one object.

Prints every step, records a bag, and writes a report. Exit status: 0 found, 1 not found, 2 something could not start.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.bag import BagWriter
from evaluation.setting import add_changes, add_prompt_options, decoding_arguments
from evaluation.summary import decoding_table, step_lines
from simulation.episode import SUCCESS_GAP
from spec_vlm_nav.graph import PROJECT, SIM_GRAPH
from spec_vlm_nav.messages import EDGE_ONLY, FALLBACK, HOLD, to_action
from spec_vlm_nav.runner import Log, Runner, StartError, free_address, require_models, take_private_domain
from spec_vlm_nav.simulated_go2 import scene_of

READY_LIMIT_S = 120.0


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="make demo", description=(__doc__ or "").splitlines()[0])
    line.add_argument("--seed", type=int, default=3, help="which room (default: 3)")
    line.add_argument("--difficulty", default="middle", choices=SIM_GRAPH.argument("difficulty").choices)
    line.add_argument("--layout", default="room", choices=SIM_GRAPH.argument("layout").choices)
    line.add_argument("--target", default="silver bottle", help="object to hide and to find (default: silver bottle)")
    line.add_argument("--instruction", help="what the robot is told (default: find the TARGET)")
    mode = SIM_GRAPH.argument("mode")
    line.add_argument("--mode", default=mode.default, choices=mode.choices, help=f"(default: {mode.default})")
    add_changes(line)
    add_prompt_options(line)
    line.add_argument("--profile", default="raw", help="device profile whose times are waited for (default: raw)")
    line.add_argument("--target-model", type=Path, default=PROJECT / "models" / "target")
    line.add_argument("--draft-model", type=Path, default=PROJECT / "models" / "draft")
    line.add_argument("--time", type=float, default=270.0, help="seconds that the robot has (default: 270)")
    line.add_argument("--out", type=Path, default=PROJECT / "out" / "demo", help="bag, log and report go here")
    line.add_argument("--no-movie", action="store_true", help="leave the movie out of the report, which takes longest")
    return line


class StepPrinter:
    """Prints each decision once its decoding figures are there, and keeps the figures."""

    def __init__(self) -> None:
        self.stats: list[Any] = []
        self._stats: dict[tuple[int, int], Any] = {}
        self._decisions: dict[tuple[int, int], Any] = {}
        self._seen: set[tuple[int, int]] = set()

    def __call__(self, topic: str, message: Any) -> None:
        """Take a message of the graph."""
        if topic == "decoding_stats":
            self.stats.append(message)
            self._stats[message.goal, message.step] = message
        elif topic == "navigation_action" and (message.goal, message.step) not in self._seen:
            self._seen.add((message.goal, message.step))
            self._decisions[message.goal, message.step] = message
        else:
            return
        # Figures and decision come on two topics, in either order.
        for key, decision in list(self._decisions.items()):
            if key in self._stats or decision.source == FALLBACK:
                self._print(self._decisions.pop(key), self._stats.get(key))

    def _print(self, decision: Any, stats: Any) -> None:
        action = to_action(decision.kind, decision.size)
        text = "HOLD" if decision.kind == HOLD or action is None else action.text
        source = " (edge model alone)" if decision.source == EDGE_ONLY else ""
        print(f"step {decision.step:2d}  {text}{source}", flush=True)
        if decision.reasoning:
            print(f"         saw: {' '.join(decision.reasoning.split())}")
        if stats is not None:
            for line in step_lines(stats):
                print(f"         {line}", flush=True)


def run(options: argparse.Namespace) -> int:
    """Run the demo and return its exit status. Raises ValueError or StartError, in one sentence, if it cannot."""
    scene = scene_of(options.seed, options.difficulty, options.target, options.layout)
    require_models(options.target_model, options.draft_model)
    take_private_domain()
    from evaluation.nodes.observer import GoalEnd, Observer

    arguments = {
        "seed": str(options.seed),
        "difficulty": options.difficulty,
        "layout": options.layout,
        "target": options.target,
        **decoding_arguments(options.mode, options.drafting, options.target_model, options.draft_model),
        "profile": options.profile,
        "response_order": options.response_order,
        "guide": options.guide,
        "verifier": free_address(),
        "trace": str((options.out / "trace.json").resolve()),
    }
    (options.out / "trace.json").unlink(missing_ok=True)
    instruction = options.instruction or f"find the {scene.target.text}"
    bag, log, printer = BagWriter(options.out / "bag"), Log(options.out / "log.txt"), StepPrinter()
    count = len(SIM_GRAPH.processes)
    end: GoalEnd | None = None
    try:
        with Runner(SIM_GRAPH, arguments, log) as runner, Observer(printer, bag) as observer:
            print(f"room {scene.seed} ({options.difficulty}), mode {options.mode}; starting {count} processes")
            runner.start()
            runner.wait_until(observer.ready, "all nodes ready", READY_LIMIT_S)
            print(f'telling the robot: "{instruction}"', flush=True)
            goal = observer.send(instruction, options.time)
            while (end := goal.wait(0.2)) is None:
                runner.check()
            truth = observer.truth
    finally:
        bag.close()
    near = bool(truth.get("visible")) and float(truth.get("distance", 9e9)) <= SUCCESS_GAP
    found = end.succeeded and near
    verdict = "FOUND" if found else "NOT FOUND"
    reason = "" if found else f": {end.message}" + ("" if near else f"; {truth.get('distance')} m away")
    headline = f"{verdict} the {scene.target.text} after {end.elapsed_s:.0f} s and {end.actions} actions{reason}"
    table = decoding_table(printer.stats)
    walked = f"walked {truth.get('path_length', 0.0):.2f} m, {truth.get('collisions', 0)} collisions"
    print(f"\n{headline}\n{walked}\n\n{table}\n")
    from evaluation.run_report import write_report

    trace = options.out / "trace.json"
    page = write_report(
        options.out, options.out / "bag", headline=headline, trace=trace if trace.exists() else None,
        movie=not options.no_movie,
    )  # fmt: skip
    print(f"report {page}\nbag    {options.out / 'bag'}\nlog    {log.path}")
    return 0 if found else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    if threading.current_thread() is threading.main_thread():
        # SIGTERM ends the processes in order, as Ctrl-C does; Python's default would leave them behind.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(parser().parse_args(arguments))
    except (ValueError, StartError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("demo: interrupted; everything was ended", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
