"""Settings as frozen msgspec structs whose fields carry their own description and limits.

One declaration is the home of a setting:

    class Batching(CheckedSettings, frozen=True):
        max_batch: Annotated[int, Meta(ge=1, le=256, description="robots in one forward")] = 8

Command lines (`add_flags`, `from_flags`), ROS parameters and documentation are made from it, and `check` holds a value
against its limits. Structs may be nested; a nested field's flag is its own name, so names are unique in one tree.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import math
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec
from msgspec import inspect

S = TypeVar("S", bound=msgspec.Struct)


class CommandLine(argparse.ArgumentParser):
    """A command line whose errors are one sentence: the usage of a command with sixty options would hide it."""

    def error(self, message: str) -> NoReturn:
        """End the process with status 2 after the sentence."""
        self.exit(2, f"{self.prog}: error: {message}; --help lists the options\n")


class Field(NamedTuple):
    """One setting."""

    name: str
    kind: type
    """Type of the value; of one of its values where there are `many`."""
    default: Any
    """`msgspec.NODEFAULT` where a value is required."""
    description: str
    least: float | None = None
    """Inclusive limit of a number; None: any."""
    most: float | None = None
    """Inclusive limit of a number; None: any."""
    choices: tuple[str, ...] = ()
    """Texts of which one is the value; empty: any."""
    optional: bool = False
    """Whether None is a value."""
    many: bool = False
    """Whether the value is a tuple."""

    @property
    def flag(self) -> str:
        """The command-line flag that sets it."""
        return "--" + self.name.replace("_", "-")

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is msgspec.NODEFAULT

    def problem(self, value: Any) -> str:
        """Return what is wrong with a value, naming the limit; empty where nothing is. Tuples are not looked into."""
        if (value is None and self.optional) or self.many:
            return ""
        if self.kind in (int, float) and not isinstance(value, str):
            least = -math.inf if self.least is None else self.least
            most = math.inf if self.most is None else self.most
            if not (math.isfinite(value) and least <= value <= most):
                return f"{value} is outside {_shown(self.least)} to {_shown(self.most)}"
        if self.choices and str(getattr(value, "value", value)) not in self.choices:
            return f"{value!r} is none of {', '.join(self.choices)}"
        return ""


def _shown(limit: float | None) -> str:
    return "any" if limit is None else f"{limit:g}" if abs(limit) < 1e6 else f"{limit}"


@functools.cache
def fields_of(struct: type[msgspec.Struct]) -> tuple[Field, ...]:
    """Return the settings of a struct and of those nested in it, in their order.

    Raises TypeError where two have one name or a field's type is none that a command line can take.
    """
    found = tuple(_walk(struct))
    names = [field.name for field in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise TypeError(f"{struct.__name__} has settings of one name: {', '.join(sorted(twice))}")
    return found


@functools.cache
def _own_fields(struct: type[msgspec.Struct]) -> tuple[tuple[inspect.Field, Field], ...]:
    info = inspect.type_info(struct)
    if not isinstance(info, inspect.StructType):
        raise TypeError(f"{struct} is no settings struct")
    return tuple((field, _read(field.type)) for field in info.fields)


def _walk(struct: type[msgspec.Struct]) -> Iterator[Field]:
    for field, found in _own_fields(struct):
        if issubclass(found.kind, msgspec.Struct):
            yield from _walk(found.kind)
            continue
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        yield found._replace(name=field.name, default=default)


def _read(annotation: inspect.Type) -> Field:
    """Return the field that an annotation describes, without its name and default."""
    description = ""
    while isinstance(annotation, inspect.Metadata):
        description = (annotation.extra_json_schema or {}).get("description", description)
        annotation = annotation.type
    field = Field("", str, None, description)
    if isinstance(annotation, inspect.UnionType):
        rest = [each for each in annotation.types if not isinstance(each, inspect.NoneType)]
        field = field._replace(optional=len(rest) < len(annotation.types))
        if len(rest) > 1:
            return field
        inner = _read(rest[0])
        return inner._replace(description=description or inner.description, optional=field.optional)
    if isinstance(annotation, inspect.VarTupleType):
        inner = _read(annotation.item_type)
        return inner._replace(description=description or inner.description, many=True)
    if isinstance(annotation, inspect.StructType):
        return field._replace(kind=annotation.cls)
    if isinstance(annotation, inspect.EnumType):
        return field._replace(kind=annotation.cls, choices=tuple(str(each.value) for each in annotation.cls))
    if isinstance(annotation, inspect.LiteralType):
        return field._replace(choices=tuple(str(value) for value in annotation.values))
    if isinstance(annotation, (inspect.IntType, inspect.FloatType)):
        kind = int if isinstance(annotation, inspect.IntType) else float
        return field._replace(kind=kind, least=annotation.ge, most=annotation.le)
    if isinstance(annotation, inspect.BoolType):
        return field._replace(kind=bool)
    if isinstance(annotation, inspect.StrType):
        return field
    if isinstance(annotation, inspect.CustomType) and issubclass(annotation.cls, Path):
        return field._replace(kind=Path)
    raise TypeError(f"no setting can be of type {annotation}")


def check(settings: msgspec.Struct) -> None:
    """Raise ValueError, naming the setting and its limit, for the first value of a struct that is outside of it.

    For a `__post_init__`: msgspec itself checks what it decodes, never what is constructed.
    """
    nested = {name: value for name in settings.__struct_fields__ if not isinstance(
        value := getattr(settings, name), msgspec.Struct)}  # fmt: skip
    for field in fields_of(type(settings)):
        if field.name in nested and (problem := field.problem(nested[field.name])):
            raise ValueError(f"{field.name} {problem}")


class CheckedSettings(msgspec.Struct, frozen=True):
    """Settings that are held against their limits when they are made; see `check`."""

    def __post_init__(self) -> None:
        check(self)


def add_flags(
    line: argparse.ArgumentParser,
    struct: type[msgspec.Struct],
    without: tuple[str, ...] = (),
    defaults: Mapping[str, Any] | None = None,
) -> None:
    """Register a flag for each setting of a struct but those of `without`; `defaults` stand in for the struct's own."""
    for field in fields_of(struct):
        if field.name in without:
            continue
        default = (defaults or {}).get(field.name, field.default)
        required = default is msgspec.NODEFAULT
        plain = getattr(default, "value", default)
        shown = "" if required or plain in (None, False, "") else f" (default: {plain})"
        how: dict[str, Any] = {"help": (field.description + shown).replace("%", "%%")}
        how |= {"required": True} if required else {"default": plain}
        if field.kind is bool:
            how |= {"nargs": "?", "const": True, "type": true_or_false, "metavar": "true|false"}
        elif field.choices:
            how["choices"] = field.choices
        else:
            how["type"] = path_flag if field.kind is Path else field.kind
        line.add_argument(field.flag, **how)
        if default is True:
            how = {"dest": field.name, "action": "store_false", "default": argparse.SUPPRESS, "help": "the reverse"}
            line.add_argument(f"--no-{field.flag.removeprefix('--')}", **how)


def from_flags(struct: type[S], options: argparse.Namespace | Mapping[str, Any]) -> S:
    """Return the settings that parsed flags give; what they lack keeps its default.

    Raises ValueError, from the struct's own checks, and for a path in a home folder that is not there.
    """
    given = options if isinstance(options, Mapping) else vars(options)
    values: dict[str, Any] = {}
    for field, found in _own_fields(struct):
        kind = found.kind
        if issubclass(kind, msgspec.Struct):
            values[field.name] = from_flags(kind, given)
        elif field.name in given:
            value = given[field.name]
            value = kind(value) if issubclass(kind, Enum) else value
            values[field.name] = expanded(value) if isinstance(value, Path) else value
    return struct(**values)


def expanded(path: Path | str) -> Path:
    """Return a path with the home folder in place of its ~. Raises ValueError where there is no such home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"{path}: there is no such home folder") from None


def path_flag(text: str) -> Path:
    """Return the path that a command line names, as `expanded`: a shell leaves the ~ of --keys=~/keys as it is.

    Raises argparse.ArgumentTypeError where there is no such home folder, and for an empty text: that is what a shell
    makes of a variable that is not set, and would be the working folder.
    """
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give a path, or leave it out")
    try:
        return expanded(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def read_values(struct: type[msgspec.Struct], held: Any) -> dict[str, Any]:
    """Return the settings of a struct that a file holds, by name; `-` counts as `_`, so that flags' names will do.

    Raises ValueError, naming the setting, for one that is unknown, stands there twice, is of another type or outside
    its limits.
    """
    if not isinstance(held, Mapping):
        raise ValueError("holds no names with values")
    fields, found = {field.name: field for field in fields_of(struct)}, {}
    for key, given in held.items():
        value: Any = given
        name = str(key).replace("-", "_")
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            raise ValueError(f"unknown setting {key!r}" + (f"; did you mean {near[0]}?" if near else ""))
        if name in found:
            raise ValueError(f"{name} stands there twice; leave one of them out")
        field = fields[name]
        kind = field.kind if field.kind in (bool, int, float) else str
        if value is not None or not field.optional:
            try:
                value = msgspec.convert(value, kind)
            except msgspec.ValidationError:
                raise ValueError(f"{name} is {value!r}, which is no {kind.__name__}") from None
            if problem := field.problem(value):
                raise ValueError(f"{name} {problem}")
            if field.kind is Path and not value:
                raise ValueError(f"{name} is empty; give a path, or leave it out")
            value = Path(value) if field.kind is Path else value
        found[name] = value
    return found


def true_or_false(text: str) -> bool:
    """Read the value that a launch argument gives a flag. Raises ArgumentTypeError for anything else."""
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text == "true"
