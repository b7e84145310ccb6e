"""Makes progress bars; nothing else does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def progress(items: Iterable[Any] | None = None, *, hidden: bool = False, **options: Any) -> Any:
    """Return tqdm's bar over `items`, or without them one to be updated; `options` are tqdm's.

    It shows nothing where stderr is no terminal, since a log would get a line for every step, and where it is `hidden`.
    """
    from tqdm import tqdm

    return tqdm(items, disable=True if hidden else None, **options)
