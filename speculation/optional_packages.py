"""Gives a sentence in place of a traceback where an extra is not installed."""

from __future__ import annotations

from importlib.util import find_spec


def need(extra: str, *modules: str) -> None:
    """Raise ImportError, naming `extra` and what is missing, where one of its `modules` cannot be found."""
    missing = [name for name in modules if not _found(name)]
    if missing:
        raise ImportError(f"{', '.join(missing)} not found: pip install 'spec-vlm-nav-core[{extra}]'")


def _found(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a package that `name` is in
        return False
