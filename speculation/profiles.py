"""Device profile: how long a draft forward, a target forward and one-way communication are declared to take.

The real work is always done; what is left of the declared time is waited where it would have passed. A profile is
named in every result, so that declared and raw figures cannot be mixed unseen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

PROFILES_FILE = Path(__file__).resolve().parent / "config" / "profiles.json"
MAX_SECONDS = 60.0
TIMES = ("draft_s", "verify_s", "one_way_s", "server_draft_s", "fed_s")

T = TypeVar("T")


def check_number(name: str, value: object, least: float, most: float, unit: str) -> None:
    """Raise ValueError, naming value and limits, for what is no number within them."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValueError(f"{name} = {value!r} is outside {least:g} to {most:g}{unit}")


@dataclass(frozen=True)
class DeviceProfile:
    """Declared durations in seconds; 0 declares nothing. Raises ValueError for one outside 0 to 60 s."""

    name: str
    draft_s: float = 0.0
    """T_p: one draft forward on the edge."""
    verify_s: float = 0.0
    """T_q: one target forward, whatever its batch."""
    one_way_s: float = 0.0
    """T_c: one message, each way."""
    server_draft_s: float = 0.0
    """One forward of a draft model that stands beside the target, whatever its batch (mode `server_sd`)."""
    fed_s: float = 0.0
    """One forward of a fed head on the edge, over one level of a tree."""
    scale: str = ""
    """Where the figures come from and how they were scaled."""

    def __post_init__(self) -> None:
        for field in TIMES:
            check_number(field, getattr(self, field), 0.0, MAX_SECONDS, " s")

    @property
    def is_raw(self) -> bool:
        """True where nothing is declared, so that measured times are the machine's own."""
        return all(getattr(self, field) == 0.0 for field in TIMES)

    def layer_due_s(self, layer: int, layers: int) -> float:
        """Return when, in seconds after a target forward's start, layer `layer` (from 0) of `layers` is due."""
        return self.verify_s * (layer + 1) / layers


RAW = DeviceProfile("raw")


def read_declarations(path: Path, kind: str, make: Callable[[str, Any], T]) -> dict[str, T]:
    """Return what a JSON file declares by name, as `make` makes it of a name and its values.

    Raises ValueError, naming `kind`, file, name and field, for anything else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{kind}s {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{kind}s {path}: no valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{kind}s {path}: expected an object of {kind}s by name")
    found = {}
    for name, values in data.items():
        try:
            found[name] = make(name, values)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{kind}s {path}: {kind} {name!r}: {error}") from None
    return found


def declared(name: str, known: Mapping[str, T], kind: str, path: Path) -> T:
    """Return what a file declares under a name. Raises ValueError, with the known names, for an unknown one."""
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}; {path.name} has {', '.join(known)}")
    return known[name]


def load_profiles(path: Path = PROFILES_FILE) -> dict[str, DeviceProfile]:
    """Return all profiles of a JSON file by name. Raises ValueError as `read_declarations`."""
    return read_declarations(path, "device profile", lambda name, values: DeviceProfile(name=name, **values))


def load_profile(name: str) -> DeviceProfile:
    """Return one profile. Raises ValueError, with the known names, for an unknown one."""
    return declared(name, load_profiles(), "device profile", PROFILES_FILE)
