"""A graph of processes and its arguments: what each process is started with, and what follows when one ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import yaml

from speculation.settings import Field, expanded, fields_of
from speculation.vlm.folder import gguf_files

RESPAWNS, RESPAWN_S = 3, 2.0
"""How often a process that died is started again, and after how many seconds."""
REFUSED = 2
"""Exit status of a process that cannot use its settings, which starting it again would not change."""
NO, YES = "false", "true"
MANAGER = "lifecycle_manager"
PARAMS_FILE = "params_file"
"""The argument that names a user's file of ROS parameters."""


@dataclass(frozen=True)
class Argument:
    """An argument of the whole graph. Empty as its default means that whoever uses it has its own default."""

    name: str
    default: str
    description: str
    choices: tuple[str, ...] = ()
    kind: type[bool] | type[int] | type[float] | type[str] = str
    """Type of the parameter that it becomes."""
    least: float | None = None
    """Inclusive lower limit of a number."""
    most: float | None = None
    """Inclusive upper limit of a number."""
    pattern: str = ""
    """A regular expression for all of a text; empty: any text."""
    example: str = ""
    """What fits the pattern, where the default does not."""
    is_path: bool = False
    """It names a file or folder, in which ~ is the home folder: a shell does not expand that behind `:=`."""
    may_be_name: bool = False
    """Where there is no such file or folder it is something else: a model on the hub, or off."""
    is_yaml: bool = False
    """It names a file with names and values."""

    def problem(self, text: str) -> str:
        """Return what is wrong with a value, naming the limit; empty where nothing is."""
        if not text and not self.default:
            return ""
        if self.choices:
            return "" if text in self.choices else f"is none of {', '.join(self.choices)}"
        if self.pattern and not re.fullmatch(self.pattern, text):
            return f"does not look like {self.default or self.example or self.description}"
        if self.kind not in (int, float):
            return ""
        try:
            number = self.kind(text)
        except ValueError:
            return "is no whole number" if self.kind is int else "is no number"
        field = Field(self.name, self.kind, None, "", self.least, self.most)
        return f"is outside its limits: {field.problem(number)}" if field.problem(number) else ""

    def typed(self, text: str) -> bool | int | float | str:
        """Return a value that has no `problem` as its kind."""
        return text == YES if self.kind is bool else self.kind(text)


def argument_of(struct: type[msgspec.Struct], setting: str, **changes: Any) -> Argument:
    """Return the argument for a setting of a struct, with its limits; `changes` are other fields of `Argument`."""
    field = next(field for field in fields_of(struct) if field.name == setting)
    plain = getattr(field.default, "value", field.default)
    kind = field.kind if field.kind in (int, float, bool) else str
    default = "" if field.required or plain is None else str(plain).lower() if kind is bool else str(plain)
    choices = (YES, NO) if kind is bool else field.choices
    given = {"name": setting, "default": default, "description": field.description, "choices": choices, "kind": kind}
    return Argument(**{**given, "least": field.least, "most": field.most, **changes})


@dataclass(frozen=True)
class Use:
    """Stands for the value of the argument called `name`."""

    name: str


Value: TypeAlias = bool | int | float | str | tuple[str, ...] | Use


def always(values: Mapping[str, str]) -> bool:
    """Hold for all arguments."""
    return True


@dataclass(frozen=True)
class NodeSpec:
    """A ROS 2 node: an executable of this package, of its name."""

    name: str
    config: str
    """Its parameter file, in the package's folder `config`; the file of the argument `params_file` is read over it."""
    parameters: tuple[tuple[str, Value], ...] = ()
    """They count more than `config`, and more than `params_file` where the argument is not at its default."""
    remaps: tuple[tuple[str, Value], ...] = ()
    """Topic names."""
    managed: bool = False
    """It is a lifecycle node, which lifecycle_manager brings up."""
    beats: bool = False
    """It has a heartbeat while it is ready."""
    respawns: int = RESPAWNS
    """How often it is started again; once more, and everything ends with a failure."""
    finite: bool = False
    """Its end with status 0 is the work done: everything ends."""
    when: Callable[[Mapping[str, str]], bool] = always
    """Whether it is started with these arguments."""
    module: str = ""
    """Where its `main` is; empty for the one of its name in `spec_vlm_nav.nodes`."""


@dataclass(frozen=True)
class CommandSpec:
    """A process that is no ROS 2 node. Arguments whose value is empty are left out with the flag before them."""

    name: str
    command: tuple[str | Use, ...]
    respawns: int = RESPAWNS
    finite: bool = False
    when: Callable[[Mapping[str, str]], bool] = always
    settings: str = ""
    """The argument that names its settings file: a flag gives way to it where its argument is at its default."""


class RespawnPolicy:
    """Decides what follows when a process ends, time after time."""

    def __init__(self, spec: NodeSpec | CommandSpec) -> None:
        self._spec, self.respawns = spec, 0

    def should_respawn(self, status: int) -> bool:
        """Return whether it is started again, False where its work is done.

        Raises RuntimeError, in a sentence, for a failure that ends everything.
        """
        spec = self._spec
        if spec.finite and status == 0:
            return False
        if status == REFUSED or self.respawns >= spec.respawns:
            tried = f" after {self.respawns} new starts" if self.respawns else ""
            raise RuntimeError(f"{spec.name} ended with status {status}{tried}")
        self.respawns += 1
        return True


@dataclass(frozen=True)
class Graph:
    """Arguments and processes, in starting order.

    Managed nodes are activated in this order: go2_bridge, which makes the robot stand, after what must work before.
    """

    arguments: tuple[Argument, ...]
    processes: tuple[NodeSpec | CommandSpec, ...]

    def argument(self, name: str) -> Argument:
        """Return the argument called `name`."""
        return next(argument for argument in self.arguments if argument.name == name)

    def node(self, name: str) -> NodeSpec:
        """Return the node called `name`."""
        return next(each for each in self.processes if isinstance(each, NodeSpec) and each.name == name)

    def values(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the values of all arguments.

        Raises ValueError, naming the argument, for an unknown name, and for a value that does not parse, is outside its
        limits or is no choice, and for a file of settings that cannot be read.
        """
        known = {argument.name: argument for argument in self.arguments}
        for name, value in given.items():
            if name not in known:
                near = get_close_matches(name, known, 1, 0.7)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
                raise ValueError(f"unknown argument {name!r}; {hint}")
            if problem := known[name].problem(value):
                raise ValueError(f"argument {name}:={value} {problem}")
        values = {name: given.get(name, argument.default) for name, argument in known.items()}
        values |= {name: _path(known[name], value) for name, value in values.items() if known[name].is_path and value}
        for name, value in values.items():
            if value and known[name].is_yaml:
                load(name, value)
        return values

    def started(self, values: Mapping[str, str]) -> list[NodeSpec | CommandSpec]:
        """Return the processes that are started with these values; lifecycle_manager knows which nodes it manages."""
        chosen = [process for process in self.processes if process.when(values)]
        managed = [node for node in chosen if isinstance(node, NodeSpec) and node.managed]
        names: tuple[tuple[str, Value], ...] = (
            ("node_names", tuple(node.name for node in managed)),
            ("heartbeats", tuple(node.name for node in managed if node.beats)),
        )
        return [
            replace(process, parameters=(*process.parameters, *names))
            if isinstance(process, NodeSpec) and process.name == MANAGER
            else process
            for process in chosen
        ]

    def given(self, process: NodeSpec, values: Mapping[str, str]) -> dict[str, Any]:
        """Return a node's parameters beyond its files: names and typed values.

        An argument at its default gives way to `params_file`, and to the node's own default where it is empty.
        """
        by_file = {name for _, name, _ in held_for(values.get(PARAMS_FILE, ""), process.name)}
        found: dict[str, Any] = {}
        for name, value in process.parameters:
            if not isinstance(value, Use):
                found[name] = list(value) if isinstance(value, tuple) else value
                continue
            argument, text = self.argument(value.name), values[value.name]
            at_default = text == argument.default
            if not (at_default and (not text or name in by_file)):
                found[name] = argument.typed(text)
        return found

    def command(self, process: CommandSpec, values: Mapping[str, str]) -> list[str]:
        """Return the words of a command; a `--flag` before an empty value goes with it."""
        by_file = load(process.settings, values[process.settings]) if values.get(process.settings) else {}
        words: list[str] = []
        for part in process.command:
            word = values[part.name] if isinstance(part, Use) else part
            flag = words[-1] if words and words[-1].startswith("--") else ""
            if isinstance(part, Use) and word == self.argument(part.name).default:
                word = "" if flag[2:].replace("-", "_") in by_file else word
            if word:
                words.append(word)
            elif flag:
                words.pop()
        return words

    @staticmethod
    def remaps(process: NodeSpec, values: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return a node's topic names and what they become.

        /tf goes with the namespace, as in nav2: each of several robots has its own.
        """
        named = [(name, values[value.name] if isinstance(value, Use) else str(value)) for name, value in process.remaps]
        return [*(pair for pair in named if pair[1]), ("/tf", "tf"), ("/tf_static", "tf_static")]


def _path(argument: Argument, value: str) -> str:
    """Return a path as it is in this folder: processes may run in another. Raises ValueError for an unknown user's."""
    try:
        if argument.may_be_name and (files := gguf_files(value)):
            return files.name
        path = expanded(value)
    except ValueError as error:
        raise ValueError(f"argument {argument.name}:={error}") from None
    return str(path) if argument.may_be_name and not path.exists() else str(path.absolute())


def load(argument: str, path: str) -> dict[str, Any]:
    """Return what a YAML file holds. Raises ValueError, naming the argument, where it holds no names and values."""
    try:
        held = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"argument {argument}:={path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"argument {argument}:={path} is no YAML: {' '.join(str(error).split())}") from None
    if held is None:
        return {}
    if not isinstance(held, dict):
        raise ValueError(f"argument {argument}:={path} holds no names with values")
    return held


def held_for(path: str, node: str) -> Iterator[tuple[str, str, Any]]:
    """Give what a ROS parameter file sets for a node: the node's name or *, name and value; nothing for no path.

    Raises ValueError, naming the file, for one that is no file of ROS parameters.
    """
    for key, held in _nodes_in(load(PARAMS_FILE, path) if path else {}):
        name = key.rpartition("/")[2]
        if name not in (node, "**", "*"):
            continue
        parameters = held.get("ros__parameters") if isinstance(held, dict) else None
        if not isinstance(parameters, dict):
            raise ValueError(f"params_file {path}: {key} holds no ros__parameters with names and values")
        for parameter, value in parameters.items():
            yield ("*" if name == "**" else name), str(parameter), value


def _nodes_in(held: Mapping[Any, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Give the nodes of a parameter file, whose namespaces may be nested, and what it holds for each."""
    for key, value in held.items():
        is_namespace = isinstance(value, dict) and value and all(isinstance(each, dict) for each in value.values())
        if is_namespace and "ros__parameters" not in value:
            yield from _nodes_in(value, f"{within}{key}/")
        else:
            yield f"{within}{key}", value
