"""Device profile: how long a draft forward, a target forward and one-way communication are declared to take.

The real work is always done; what is left of the declared time is waited where it would have passed. A profile is
named in every result, so that declared and raw figures cannot be mixed unseen.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROFILES_FILE = Path(__file__).resolve().parent / "config" / "profiles.json"
MAX_SECONDS = 60.0
TIMES = ("draft_s", "verify_s", "one_way_s", "server_draft_s", "fed_s")


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
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"profile {self.name!r}: {field} = {value!r} is no number of seconds")
            if not (math.isfinite(value) and 0.0 <= value <= MAX_SECONDS):
                raise ValueError(f"profile {self.name!r}: {field} = {value} s is outside 0 to {MAX_SECONDS:g} s")

    @property
    def is_raw(self) -> bool:
        """True where nothing is declared, so that measured times are the machine's own."""
        return all(getattr(self, field) == 0.0 for field in TIMES)

    def layer_due_s(self, layer: int, layers: int) -> float:
        """Return when, in seconds after a target forward's start, layer `layer` (from 0) of `layers` is due."""
        return self.verify_s * (layer + 1) / layers


RAW = DeviceProfile("raw")


def read_declarations(path: Path, kind: str) -> dict[str, Any]:
    """Return a JSON file's object of declarations by name. Raises ValueError, naming `kind` and file, for others."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{kind} {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{kind} {path}: no valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{kind} {path}: expected an object of {kind} by name")
    return data


def load_profiles(path: Path = PROFILES_FILE) -> dict[str, DeviceProfile]:
    """Return all profiles of a JSON file by name. Raises ValueError, naming file and field, for anything else."""
    profiles = {}
    for name, fields in read_declarations(path, "device profiles").items():
        try:
            profiles[name] = DeviceProfile(name=name, **fields)
        except TypeError as error:
            raise ValueError(f"device profiles {path}: profile {name!r}: {error}") from None
    return profiles


def load_profile(name: str, path: Path = PROFILES_FILE) -> DeviceProfile:
    """Return one profile. Raises ValueError, with the known names, for an unknown one."""
    profiles = load_profiles(path)
    if name not in profiles:
        raise ValueError(f"unknown device profile {name!r}; {path.name} has {', '.join(profiles)}")
    return profiles[name]
