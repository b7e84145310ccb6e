"""What commands have in common that start a process graph: its arguments as flags, its models, how it is ended."""

from __future__ import annotations

import argparse
from pathlib import Path

from edge_drafter import Mode
from spec_vlm_nav.process_graph import Graph
from spec_vlm_nav.runner import free_address, require_models, take_private_domain
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
    require_models(Path(arguments["target_model"]), Path(arguments["draft_model"]))
    if arguments["mode"] == Mode.SERVER_SD.value:
        arguments["server_draft"] = arguments["draft_model"]
    take_private_domain()
    return {**arguments, "verifier": free_address(), **given}
