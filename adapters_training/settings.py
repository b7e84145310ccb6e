"""Settings of a long command: a YAML file, command-line options over it, one frozen struct that checks both.

A settings struct is a `msgspec.Struct` whose fields are `Annotated[type, Meta(description=..., ge=..., ...)]`: the
description is the option's help, the limits are checked wherever a value comes from, and errors name the field.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

S = TypeVar("S", bound=msgspec.Struct)
CONFIG = "config"


def add_options(parser: argparse.ArgumentParser, kind: type[S]) -> None:
    """Give `parser` an option for every field of `kind`, and --config for a YAML file with any of them."""
    parser.add_argument(
        f"--{CONFIG}", type=Path, metavar="FILE", help="YAML file of settings; options here override it"
    )
    hints = get_type_hints(kind, include_extras=True)
    for entry in msgspec.structs.fields(kind):
        base, meta = get_args(hints[entry.name])[:2]
        default = entry.default if entry.default is not msgspec.NODEFAULT else None
        if entry.default_factory is not msgspec.NODEFAULT:
            default = entry.default_factory()
        flag, text = f"--{entry.name.replace('_', '-')}", str(meta.description).replace("%", "%%")
        said = f"{text} (default: {_shown(default)})" if default is not None else f"{text} (required)"
        if base is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=said)
        elif get_origin(base) is tuple:
            parser.add_argument(flag, nargs="*", default=None, metavar=entry.name.upper(), help=said)
        else:
            parser.add_argument(flag, default=None, metavar=entry.name.upper(), help=said)


def read(kind: type[S], options: argparse.Namespace) -> S:
    """Return the settings of a parsed command line. Raises ValueError, in a sentence that names the field."""
    path: Path | None = getattr(options, CONFIG)
    values = read_file(path) if path is not None else {}
    hints = get_type_hints(kind, include_extras=True)
    for name in kind.__struct_fields__:
        given = getattr(options, name)
        if given is None:
            continue
        if isinstance(given, list):
            # `--layers 1,3,5` and `--layers 1 3 5` mean the same; commas may stand in the name of a path.
            numbers = int in get_args(get_args(hints[name])[0])
            given = [part for text in given for part in (text.split(",") if numbers else [text]) if part]
        values[name] = given
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
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        name = path.strip("`.").partition("[")[0]
        if name:
            shown = f"setting {name} is {values.get(name)!r}: {text}"
        else:
            shown = text.replace("Object missing required field", "missing setting").replace(
                "Object contains unknown field", "unknown setting"
            )
        raise ValueError(f"{where}: {shown}" if where else shown) from None


def write(settings: msgspec.Struct, path: Path) -> None:
    """Write settings as the YAML file that `--config` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.yaml.encode(msgspec.to_builtins(settings)))


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return " ".join(map(str, default)) or "none"
    if isinstance(default, float):
        return f"{default:g}"
    return str(getattr(default, "value", default)) or "none"
