"""Changes of files that a test damages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def edit(path: Path, **values: Any) -> None:
    """Change values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")
