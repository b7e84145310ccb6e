"""Service classes: how fast an answer must come, as a robot asks for it in its Hello and a scheduler plans for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServiceClass:
    """A promise of speed."""

    name: str
    tokens_per_s: float
    """Committed tokens a second, from the request of a draft to the commit that answers it."""


SERVICE_CLASSES = {
    each.name: each
    for each in (
        ServiceClass("batch", 1.0),
        ServiceClass("economy", 2.0),
        ServiceClass("standard", 4.0),
        ServiceClass("responsive", 6.0),
        ServiceClass("interactive", 8.0),
    )
}
"""Name -> class, the slowest first: `batch`, for whom nobody waits, and the four of WISP, Sec. 5.1."""
BATCH, INTERACTIVE = SERVICE_CLASSES["batch"], SERVICE_CLASSES["interactive"]


def service_class(name: str) -> ServiceClass:
    """Return the class of this name. Raises ValueError, with the known names, for another."""
    try:
        return SERVICE_CLASSES[name]
    except KeyError:
        known = ", ".join(f"{each.name} ({each.tokens_per_s:g} tokens/s)" for each in SERVICE_CLASSES.values())
        raise ValueError(f"service class {name!r} is none of {known}") from None
