"""Where benchmarks put their pictures: a folder for trials, docs/benchmarks with --save."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from benchmarks.setting import add_save
from spec_vlm_nav.graph import PROJECT

KEPT = PROJECT / "docs" / "benchmarks"
DPI = 100
WIDTH = 9.0
"""Inches: with `DPI` the width of a README."""


def add_outputs(line: argparse.ArgumentParser) -> None:
    """Register --quick, --out and --save."""
    line.add_argument("--quick", action="store_true", help="few points and steps, for a look")
    line.add_argument(
        "--out", type=Path, default=PROJECT / "out" / "benchmarks", help="folder of pictures (default: out/benchmarks)"
    )
    add_save(line)


def write_picture(figure: Figure, name: str, options: argparse.Namespace) -> Path:
    """Write NAME.png to --out, or with --save to docs/benchmarks, and say so. Raises OSError."""
    folder: Path = KEPT if options.save else options.out
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DPI)
    Image.open(drawn).convert("RGB").save(path, optimize=True)
    print(f"drawn {path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path}")
    return path
