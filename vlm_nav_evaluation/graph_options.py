"""What commands share that start a process graph: its arguments as flags, its models, and its log."""

from __future__ import annotations

import argparse
import os
import random
import threading
from pathlib import Path

from edge_drafter import Mode
from spec_vlm_nav.process_graph import Graph
from spec_vlm_nav.runner import free_address
from speculation.vlm.folder import gguf_files

DECODING = ("mode", "drafting", "response_order", "guide", "profile", "link", "target_model", "draft_model")
"""Arguments of every graph with a verifier and a navigation node."""


def add_graph_flags(line: argparse.ArgumentParser, graph: Graph, *names: str, **defaults: str) -> None:
    """Register arguments of a graph as flags; `defaults` stand in for the graph's own."""
    for name in names:
        argument = graph.argument(name)
        default = defaults.get(name, argument.default)
        flag, choices = f"--{name.replace('_', '-')}", argument.choices or None
        shown = argument.description + (" (default: %(default)s)" if default else "")
        line.add_argument(flag, default=default, type=argument.kind, choices=choices, help=shown)


def prepare(graph: Graph, options: argparse.Namespace, **given: str) -> dict[str, str]:
    """Return the graph's arguments, of flags and `given`; its ROS domain, verifier address and end are this run's own.

    Raises ValueError, in one sentence, for a folder that holds no model.
    """
    known = {argument.name for argument in graph.arguments}
    arguments = {name: str(value) for name, value in vars(options).items() if name in known}
    for name in ("target_model", "draft_model"):
        files = gguf_files(arguments[name])
        arguments[name] = files.name if files else str(Path(arguments[name]).resolve())
    _require_models(Path(arguments["target_model"]), Path(arguments["draft_model"]))
    if arguments["mode"] == Mode.SERVER_SD.value:
        arguments["server_draft"] = arguments["draft_model"]
    _take_private_domain()
    return {**arguments, "verifier": free_address(), **given}


class Log:
    """All output of the processes in a file; what a person must see, on the screen as well."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()

    def __call__(self, name: str, line: str) -> None:
        """Take a line of a process."""
        with self._lock:
            self._file.write(f"[{name}] {line}\n")
            self._file.flush()
        if any(mark in line for mark in ("[WARN]", "[ERROR]", "[FATAL]", "error:", "Traceback")):
            print(f"  [{name}] {line}", flush=True)


def _require_models(target: Path, draft: Path) -> None:
    """Raise ValueError, saying which and what to do, unless both folders hold a model; a draft may be GGUF files."""
    for name, folder in (("target", target), ("draft", draft)):
        if name == "draft" and gguf_files(folder):
            continue
        if not (folder / "config.json").exists():
            raise ValueError(f"no {name} model in {folder}; train the pair first, see docs/training.md")


def _take_private_domain() -> None:
    """Choose a ROS domain of this machine alone, unless the environment names one; call it before rclpy starts.

    Two runs on one machine must not see each other, and neither may reach a robot that is live.
    """
    os.environ.setdefault("ROS_DOMAIN_ID", str(random.SystemRandom().randint(1, 100)))
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
