"""Commands and their settings: a YAML file, command-line options over it, one frozen struct that checks both.

The struct is one of `speculation.settings`: descriptions are the options' help, limits are checked wherever a value
comes from, and errors name the field.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from speculation.settings import expanded, fields_of, path_flag

S = TypeVar("S", bound=msgspec.Struct)
CONFIG = "config"


@dataclass(frozen=True)
class Command(Generic[S]):
    """A command `name`: `text` is its line in the help of all commands, `about` its own help."""

    name: str
    text: str
    about: str | None
    kind: type[S]
    """Each field is an option, and a line of the YAML file that --config names."""
    run: Callable[[S], int]
    """Returns the exit status. Raises ValueError or OSError, in one sentence, for what cannot be done."""

    def add(self, commands: Any) -> None:
        """Register the command."""
        line = commands.add_parser(
            self.name, help=self.text, description=self.about, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add_options(line, self.kind)
        line.set_defaults(run=lambda options: self.run(read(self.kind, options)))


def add_options(parser: argparse.ArgumentParser, kind: type[S]) -> None:
    """Give `parser` an option for every field of `kind`, and --config for a YAML file with any of them."""
    parser.add_argument(
        f"--{CONFIG}", type=path_flag, metavar="FILE", help="YAML file of settings; options here override it"
    )
    for field in fields_of(kind):
        text = field.description.replace("%", "%%")
        text += " (required)" if field.required else f" (default: {_shown(field.default)})"
        if field.kind is bool:
            parser.add_argument(field.flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            several = "*" if field.many else None
            parser.add_argument(field.flag, nargs=several, default=None, metavar=field.name.upper(), help=text)


def read(kind: type[S], options: argparse.Namespace) -> S:
    """Return the settings of a parsed command line. Raises ValueError, in a sentence that names the field."""
    path: Path | None = getattr(options, CONFIG)
    values = read_file(path) if path is not None else {}
    for field in fields_of(kind):
        given = getattr(options, field.name)
        if given is None:
            continue
        if field.many and (field.kind is int or field.choices):
            # `--layers 1,3,5` and `--layers 1 3 5` mean the same; commas may stand in the name of a path.
            given = [part for text in given for part in text.split(",") if part]
        values[field.name] = given
    return make(kind, values, str(path) if path is not None else "")


def read_file(path: Path) -> dict[str, Any]:
    """Return the settings that a YAML file holds. Raises ValueError for a file that is missing or holds no mapping."""
    try:
        values = msgspec.yaml.decode(path.read_bytes())
    except OSError as error:
        raise ValueError(f"--config {path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"--config {path} is no YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"--config {path} must hold 'name: value' lines")
    return values


def make(kind: type[S], values: dict[str, Any], where: str = "") -> S:
    """Return the struct of `values` (texts are read as numbers where numbers are wanted). Raises ValueError."""
    try:
        return msgspec.convert(values, kind, strict=False, dec_hook=lambda _, value: expanded(value))
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        name = path.strip("`.").partition("[")[0]
        if name:
            choices = next((field.choices for field in fields_of(kind) if field.name == name), ())
            text += f"; give one of {', '.join(choices)}" if choices else ""
            shown = f"setting {name} is {_at(values, name)!r}: {text}"
        else:
            shown = text.replace("Object missing required field", "missing setting").replace(
                "Object contains unknown field", "unknown setting"
            )
        raise ValueError(f"{where}: {shown}" if where else shown) from None


def _at(values: Any, name: str) -> Any:
    """Return the value of a setting; of a nested one the name has dots."""
    for part in name.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def write(settings: msgspec.Struct, path: Path) -> None:
    """Write settings as the YAML file that `--config` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.yaml.encode(msgspec.to_builtins(settings)))


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return " ".join(str(getattr(each, "value", each)) for each in default) or "none"
    if isinstance(default, float):
        return f"{default:g}"
    return "none" if default in (None, "") else str(getattr(default, "value", default))
