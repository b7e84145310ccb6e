"""`link-loss`: kill, freeze, cut, delay or garble every part of a running system, thinking and moving.

Verifier, simulated Go2, bridge, executor and navigation are real processes; their topics go through a relay, the link
through a proxy. Printed for every fault: time until the commanded speed is zero, at the executor's output and at the
requests to the robot, and whether the goal goes on. A row that breaks the limit is measured again, as is one whose goal
the room itself has ended; all of them are in link_loss.json. Exit status 1 where the last of `--tries` breaks it.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from spec_vlm_nav.graph import PROJECT, SIM_GRAPH
from spec_vlm_nav.process_graph import Graph, NodeSpec
from spec_vlm_nav.runner import Runner, StartError, free_address
from spec_vlm_nav.safety import LAST_STOPS_S
from speculation.progress import progress
from speculation.settings import path_flag
from vlm_nav_evaluation.graph_options import DECODING, Log, add_graph_flags, prepare
from vlm_nav_evaluation.link_loss.faults import (
    DELAY_S,
    FAULTS,
    LIMIT_S,
    PARTS,
    Fault,
    Kind,
    Phase,
    Row,
    attempts,
    problems,
    process_of,
    to_zero,
)
from vlm_nav_evaluation.link_loss.proxy import Proxy
from vlm_nav_evaluation.options import several
from vlm_nav_evaluation.results import provenance, write_json
from vlm_nav_evaluation.tables import Column, figures_table

READY_LIMIT_S, PHASE_LIMIT_S, RESUME_LIMIT_S = 120.0, 60.0, 60.0
INTO_MOTION_S = 0.2
LONG_M, LONG_RAD = 0.5, 0.5
POLL_S = 0.01
KINDS, PHASES = ([each.value for each in names] for names in (Kind, Phase))
COLUMNS = (
    Column("cmd_vel zero s", "cmd_vel_s", ".3f"),
    Column("request zero s", "request_s", ".3f"),
    Column("goes on after s", "resumed_s", ".1f"),
    Column("tries", "tries"),
    Column("note", "note"),
)


def add_options(line: argparse.ArgumentParser) -> None:
    """Register the options of `link-loss`."""
    add_graph_flags(line, SIM_GRAPH, "seed", "difficulty", *DECODING, seed="3")
    line.add_argument("--target", default="silver bottle", help="hidden in the room; the robot looks for --instruction")
    line.add_argument("--instruction", default="find the red ball", help="best for something that is not in the room")
    for name, known in (("parts", PARTS), ("kinds", KINDS), ("phases", PHASES)):
        shown = f"comma-separated, of {','.join(known)} (default: all)"
        line.add_argument(f"--{name}", type=several(known), default=list(known), help=shown)
    line.add_argument("--hold", type=float, default=3.0, help="seconds that a fault lasts (default: 3)")
    line.add_argument("--tries", type=int, default=3, help="measurements of a row that breaks the limit (default: 3)")
    line.add_argument(
        "--out", type=path_flag, default=PROJECT / "out" / "link_loss", help="log and link_loss.json go here"
    )


def run(options: argparse.Namespace) -> int:
    """Run all rows and print the table. Raises StartError where nothing starts."""
    if not 1.0 <= options.hold <= 30.0:
        raise ValueError(f"--hold {options.hold:g} is outside 1 to 30 seconds")
    if options.tries < 1:
        raise ValueError(f"--tries {options.tries}: give at least 1")
    cells: list[list[Row]] = []
    faults = [each for each in FAULTS if each.part in options.parts and each.kind.value in options.kinds]
    cases = [(fault, Phase(phase)) for fault in faults for phase in options.phases]
    log = Log(options.out / "log.txt")
    bench: Bench | None = None

    def measure(fault: Fault, phase: Phase) -> Row:
        nonlocal bench
        bench = bench or Bench(options, log)
        try:
            row = bench.row(fault, phase, options.hold)
        except StartError as error:
            row = Row(fault.part, fault.kind.value, phase.value, None, None, None, str(error)[:120])
        if problems([row]):
            # Anew: a process is started again only so many times.
            bench.close()
            bench = None
        return row

    try:
        for case in progress(cases, unit="fault"):
            cells.append(attempts(partial(measure, *case), options.tries))
    finally:
        if bench is not None:
            bench.close()
    return report(options, cells)


def report(options: argparse.Namespace, cells: Sequence[Sequence[Row]]) -> int:
    """Print and write the table; return the exit status."""
    rows = [measured[-1] for measured in cells]
    shown = [{**asdict(row), "tries": len(measured)} for row, measured in zip(rows, cells, strict=True)]
    print(figures_table("fault", {f"{row['part']} {row['kind']}, {row['phase']}": row for row in shown}, COLUMNS))
    broken, earlier = problems(rows), [row for measured in cells for row in measured[:-1]]
    about = provenance(options)
    print(f"\nlimit {LIMIT_S:g} s, delays {DELAY_S:g} s; {about['machine']}")
    if earlier:
        print(f"measured again, {len(earlier)} of {len(earlier) + len(rows)} times:", *problems(earlier), sep="\n  ")
    print("\n".join(broken) if broken else "every row is within the limit, and every goal goes on")
    path = options.out / "link_loss.json"
    measured_again = [asdict(row) for row in earlier]
    data = {"hold_s": options.hold, "rows": shown, "measured_again": measured_again, "problems": broken}
    write_json(path, {**about, **data})
    print(path)
    return 1 if broken else 0


class Bench:
    """The running system with its relay and proxy, and the goal that goes on from row to row."""

    def __init__(self, options: argparse.Namespace, log: Log) -> None:
        served = free_address()
        host, port = served.removeprefix("tcp://").split(":")
        arguments = prepare(SIM_GRAPH, options, verifier=served)
        # rclpy starts only once the ROS domain is chosen.
        from vlm_nav_evaluation.nodes.fault_relay import REQUESTS, relaying
        from vlm_nav_evaluation.nodes.observer import Observer

        self._requests = REQUESTS
        with ExitStack() as stack:
            self._proxy = stack.enter_context(Proxy((host, int(port)), DELAY_S))
            self._relay = stack.enter_context(relaying(DELAY_S))
            self._runner = stack.enter_context(Runner(relayed(SIM_GRAPH, self._proxy.address), arguments, log))
            self._observer = stack.enter_context(Observer())
            self._runner.start()
            self._runner.wait_until(self._observer.ready, "all nodes ready", READY_LIMIT_S)
            self._ends = self._observer.send(options.instruction, 3600.0)
            self.close = stack.pop_all().close
            """Ends all processes."""

    def row(self, fault: Fault, phase: Phase, hold_s: float) -> Row:
        """Wait for the phase, cause the fault, end it, and wait for the next motion."""
        self._wait(lambda: all(map(self._runner.alive, self._runner.names)), READY_LIMIT_S, "process that was killed")
        # Actions that the fault before had blocked count for no goal's end.
        self._wait(self._carries_out, PHASE_LIMIT_S, "action carried out")
        if phase is Phase.MOVING:
            self._wait(self._long_motion, PHASE_LIMIT_S, "a long motion")
            time.sleep(INTO_MOTION_S)
        else:
            self._wait(self._thinking, PHASE_LIMIT_S, "a question")
        began = time.monotonic()
        heal = self._cause(fault)
        while (ended := time.monotonic()) < began + hold_s:
            self._runner.check()
            time.sleep(POLL_S)
        heal()
        cmd_vel = to_zero(self._relay.commands("cmd_vel", began - 1.0), began, ended)
        request = to_zero(self._relay.commands(self._requests, began - 1.0), began, ended, LAST_STOPS_S)
        resumed, note = None, ""
        try:
            self._wait(lambda: self._moves_since(ended), RESUME_LIMIT_S, "motion")
            resumed = time.monotonic() - ended
        except StartError as error:
            note = str(error)[:120]
        return Row(fault.part, fault.kind.value, phase.value, cmd_vel, request, resumed, note)

    def _cause(self, fault: Fault) -> Callable[[], None]:
        """Begin a fault; return what ends it."""
        if fault.kind in (Kind.KILL, Kind.FREEZE):
            pid = self._runner.pid(process_of(fault.part))
            is_killed = fault.kind is Kind.KILL
            os.kill(pid, signal.SIGKILL if is_killed else signal.SIGSTOP)
            return lambda: None if is_killed else os.kill(pid, signal.SIGCONT)
        if fault.part == "verifier":
            self._proxy.fault = fault.kind
            return partial(setattr, self._proxy, "fault", None)
        parts = ("robot", "camera") if fault.part == "robot" else (fault.part,)
        self._relay.faults.update(dict.fromkeys(parts, fault.kind))
        return self._relay.faults.clear

    def _carries_out(self) -> bool:
        status = self._observer.last.get("action_status")
        return status is not None and status.outcome == status.DONE and status.size > 0

    def _thinking(self) -> bool:
        state = self._observer.last.get("navigation_state")
        return state is not None and state.data == "thinking" and self._observer.speed < 0.02

    def _long_motion(self) -> bool:
        status = self._observer.last.get("action_status")
        action = self._observer.last.get("navigation_action")
        if status is None or action is None or (status.goal, status.step) != (action.goal, action.step):
            return False
        far = abs(action.value) >= (LONG_M if action.kind == action.FORWARD else LONG_RAD)
        return far and status.outcome == status.RUNNING and self._observer.speed > 0.1 and status.progress < 0.2

    def _moves_since(self, moment: float) -> bool:
        return (
            any(speed > 0.0 for _, speed in self._relay.commands(self._requests, moment)) and self._observer.speed > 0.1
        )

    def _wait(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        """Wait. Raises StartError, with the goal's end if it has one, where it does not come."""
        until = time.monotonic() + limit_s
        while not condition():
            if self._ends:
                raise StartError(f"the goal ended: {self._ends[0].message}")
            self._runner.check()
            if time.monotonic() > until:
                raise StartError(f"no {what} within {limit_s:g} s")
            time.sleep(POLL_S)


def relayed(graph: Graph, address: str) -> Graph:
    """Return the graph with its topics sent through the relay, and the navigation node's link through the proxy."""
    from vlm_nav_evaluation.nodes.fault_relay import remaps

    changed: list[Any] = []
    for process in graph.processes:
        if isinstance(process, NodeSpec):
            more = tuple(each if each[0] != "verifier" else ("verifier", address) for each in process.parameters)
            process = replace(process, parameters=more, remaps=(*process.remaps, *remaps(process.name)))
        changed.append(process)
    return replace(graph, processes=tuple(changed))
