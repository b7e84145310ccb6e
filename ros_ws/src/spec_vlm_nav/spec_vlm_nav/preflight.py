"""Whether a graph can run with its arguments and parameter files, said before any process is started. No ROS, no torch.

It makes what the nodes make at their start, from the same declarations, so that both refuse the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from edge_drafter import Mode
from edge_drafter.link import load_keys
from spec_vlm_nav.camera import CAMERA, MOUNT
from spec_vlm_nav.graph import EDGE, GRAPHS
from spec_vlm_nav.lifecycle import MANAGER_PARAMETERS
from spec_vlm_nav.parameters import (
    BRIDGE,
    EXECUTOR,
    FRAMES,
    GUARD,
    LIMITS,
    MANAGED,
    MOTION,
    NAVIGATOR,
    STOP_WATCHDOG,
    VLM_NAV,
    Parameters,
    as_parameter,
)
from spec_vlm_nav.process_graph import PARAMS_FILE, Graph, NodeSpec, held_for, load
from speculation.links import load_link
from speculation.optional_packages import need
from speculation.predictor import OFF
from speculation.profiles import load_profile
from speculation.settings import Field
from speculation.vlm.folder import DOWNLOAD_VARIABLE, find_model, gguf_files, read_config
from speculation.vlm.gguf_file import check_eyes, check_language_model, read_metadata
from vlm_nav_simulation.scene import scene_of

CONFIG = Path(__file__).resolve().parent / "config"
PARTS: dict[str, tuple[Parameters[Any], ...]] = {
    "vlm_nav": (EDGE, FRAMES, NAVIGATOR, VLM_NAV, MANAGED),
    "action_executor": (MOTION, EXECUTOR, MANAGED),
    "go2_bridge": (LIMITS, BRIDGE, GUARD, MANAGED),
    "stop_watchdog": (STOP_WATCHDOG,),
    "go2_camera": (CAMERA, MOUNT, MANAGED),
    "lifecycle_manager": (MANAGER_PARAMETERS,),
}
"""What each node's parameters are made from, without the nodes that replace a robot."""
OF_ROS = ("use_sim_time", "start_type_description_service", "qos_overrides")
"""Parameters that every node of rclpy takes."""


def check(graph: Graph, values: Mapping[str, str]) -> None:
    """Raise ValueError, in a sentence that names the argument or parameter, for what the processes would refuse."""
    for problem in problems(graph, values):
        raise ValueError(problem)


def problems(graph: Graph, values: Mapping[str, str]) -> Iterator[str]:
    """Give what the processes would refuse, each once, in sentences that name the argument or parameter."""
    said = set[str]()
    for look in _looks(graph, values):
        try:
            look()
        except ValueError as error:
            if str(error) not in said:
                said.add(str(error))
                yield str(error)


def _looks(graph: Graph, values: Mapping[str, str]) -> Iterator[Callable[[], Any]]:
    """Give what looks at one thing each, and raises ValueError."""
    started = graph.started(values)
    names = {process.name for process in started}
    if "verifier" in names:
        yield partial(_check_verifier, graph, values)
    if "sim_go2" in names and "target" in values:  # a graph may set the room itself
        words = (values[name] for name in ("difficulty", "target", "layout"))
        yield partial(_refusal, f"argument target:={values['target']}", scene_of, int(values["seed"]), *words)
    if "bag_player" in names:
        yield partial(_check_bag, values)
    yield partial(_check_nodes_named, values.get(PARAMS_FILE, ""))
    for process in started:
        if isinstance(process, NodeSpec) and process.name in PARTS:
            yield partial(parameters_of, graph, process, values)
            for name in READ_AT_START if process.name == "vlm_nav" else ():
                yield partial(_check_read, graph, process, values, name)


def _check_read(graph: Graph, process: NodeSpec, values: Mapping[str, str], name: str) -> None:
    if value := str(parameters_of(graph, process, values)[name]):
        where = "argument {}:={}" if name in graph.given(process, values) else "vlm_nav: {} {}"
        _refusal(where.format(name, value), READ_AT_START[name], value)


def _check_head(name: str) -> None:
    if name != OFF and not Path(name).is_dir():
        raise ValueError("it is no folder; give the folder of a fed head")


def _check_model(name: str) -> None:
    # What is to be fetched is not here yet.
    if Path(name).exists() or os.environ.get(DOWNLOAD_VARIABLE) != "1":
        read_config(find_model(name))


def _check_draft(name: str) -> None:
    files = gguf_files(name)
    if files is None:
        _check_model(name)
        return
    need("llama-cpp", "llama_cpp")
    check_language_model(files.weights, read_metadata(files.weights))
    if files.eyes is not None:
        check_eyes(files.eyes, read_metadata(files.eyes))


def _check_bag(values: Mapping[str, str]) -> None:
    if not values["bag"] or not Path(values["bag"]).exists():
        raise ValueError(f"argument bag:={values['bag']} does not exist: give a bag's folder or file, or a data set")
    if not values["instruction"].strip():
        raise ValueError("argument instruction is empty: give for example instruction:='find the silver bottle'")


def _check_verifier(graph: Graph, values: Mapping[str, str]) -> None:
    """Check its models and its profile; one that runs elsewhere says at its Welcome whether it drafts."""
    path = values["verifier_config"]
    settings = load("verifier_config", path) if path else {}
    held = {str(name).replace("-", "_"): value for name, value in settings.items()}
    reads = (("target_model", "model", _check_model), ("server_draft", "draft_model", _check_model),
             ("profile", "profile", load_profile))  # fmt: skip
    for name, option, read in reads:
        by_file = values[name] == graph.argument(name).default and held.get(option)
        value, where = (str(held[option]), f"{path}: {option}") if by_file else (values[name], f"argument {name}:=")
        if value:
            _refusal(f"{where} {value}" if by_file else f"{where}{value}", read, value)
    if values.get("mode") == Mode.SERVER_SD.value and not (values["server_draft"] or held.get("draft_model")):
        raise ValueError("mode:=server_sd drafts beside the target: give server_draft:=FOLDER, e.g. models/draft")


def _check_nodes_named(path: str) -> None:
    """Refuse a slip in a node's name; nodes of other packages may stand in the same file."""
    known = {process.name for graph in GRAPHS.values() for process in graph.processes if isinstance(process, NodeSpec)}
    for key in load(PARAMS_FILE, path) if path else ():
        name = str(key).rpartition("/")[2]
        near = get_close_matches(name, known, 1, 0.8)
        if near and name not in known:
            raise ValueError(f"params_file {path} names the node {key!r}, which is none; did you mean {near[0]}?")


def parameters_of(graph: Graph, process: NodeSpec, values: Mapping[str, str]) -> dict[str, Any]:
    """Return what a node's parameters will be. Raises ValueError, as the node itself."""
    parts = PARTS[process.name]
    known = {name: field for part in parts for name, field in part.fields().items()}
    found: dict[str, Any] = {name: as_parameter(field.default) for name, field in known.items()}
    for path in (str(CONFIG / process.config), values.get(PARAMS_FILE, "")):
        for key, name, value in held_for(path, process.name):
            where = f"{path}: {process.name}"
            if name in known:
                found[name] = _typed(where, name, known[name], value)
            # What is set for every node is for those that know it.
            elif key == process.name and not name.startswith(OF_ROS):
                near = get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"
                raise ValueError(f"{where} has no parameter {name!r}{hint}")
    found |= graph.given(process, values)
    for part in parts:
        _refusal(process.name, part.settings, found)
    return found


def _typed(where: str, name: str, field: Field, value: Any) -> Any:
    """Return a parameter of a file as ROS reads it; refuse what rclpy refuses.

    A parameter keeps the type of its default, and ROS takes 1 for no double, but 2e-1, which is a word to YAML 1.1.
    """
    default = as_parameter(field.default)
    kind = type(default)
    if kind is float and isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    if type(value) is not kind and not (field.kind is str and isinstance(default, (int, float))):
        more = f"; write {float(value)}" if kind is float and type(value) is int else ""
        raise ValueError(f"{where}: {name} is {value!r}, which is no {kind.__name__}{more}")
    if problem := field.problem(value):
        raise ValueError(f"{where}: {name} {problem}")
    return value


READ_AT_START: dict[str, Callable[[str], Any]] = {
    "profile": load_profile,
    "link": load_link,
    "keys": lambda folder: load_keys(Path(folder)),
    "draft_model": _check_draft,
    "fed_head": _check_head,
}
"""Parameters of vlm_nav that name something to be read, and what reads it."""


def _refusal(what: str, make: Any, *given: Any) -> None:
    try:
        make(*given)
    except (ValueError, OSError, ImportError) as error:
        raise ValueError(f"{what}: {error}") from None
