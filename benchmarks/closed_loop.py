"""Closed loop over seeds: does the robot find what it is told to find, and how often does the oracle?

Runs the kinematic simulator without ROS: frame -> answer -> action, exactly executed. `--policy target` lets the target
model answer alone; `--policy draft` shows what the edge model alone is worth. Decoding modes that go through a verifier
give the target's tokens (benchmarks/exactness.py), hence the same episodes.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from simulation.camera import Image
from simulation.dataset import encode_jpeg
from simulation.episode import EpisodeResult, Policy, oracle_policy, run_episode
from simulation.scene import Difficulty, Scene, make_scene
from simulation.world import World
from speculation.prompts import ActionKind, ActionSize, NavigationAction, Target, parse_answer
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession

MAX_TOKENS = 96
LOST = NavigationAction(ActionKind.TURN_LEFT, ActionSize.LARGE)
"""What an unreadable answer becomes here: it costs an action. The real robot stands instead."""


@dataclass(frozen=True)
class Row:
    """One seed's result: the policy's and the oracle's."""

    seed: int
    target: str
    outcome: str
    success: bool
    actions: int
    path_length: float
    collisions: int
    final_gap: float
    oracle_success: bool
    oracle_actions: int
    oracle_path_length: float


def model_policy(session: VlmSession, scene: Scene, verbose: bool) -> Policy:
    """Return a policy that asks the model about the frame as the robot sees it, through JPEG."""
    prompt = f"find the {scene.target.text}"

    def policy(image: Image, _: World) -> NavigationAction:
        text = session.answer(prompt, encode_jpeg(image), MAX_TOKENS)
        if verbose:
            tqdm.write(f"  {text!r}")
        return parse_answer(text).action or LOST

    return policy


def spl(rows: Sequence[Row]) -> float:
    """Return success weighted by path length (Anderson et al. 2018), the oracle's path as the shortest one."""
    total = 0.0
    for row in rows:
        if row.success and row.oracle_success:
            total += row.oracle_path_length / max(row.path_length, row.oracle_path_length, 1e-9)
    return total / max(1, len(rows))


def run(seeds: Sequence[int], difficulty: Difficulty, target: Target | None, session: VlmSession,
        verbose: bool = False) -> list[Row]:  # fmt: skip
    """Run every seed once with the model and once with the oracle, printing the table as it grows."""
    rows: list[Row] = []
    for seed in tqdm(seeds, desc="episodes", disable=None):
        scene = make_scene(seed, difficulty, target)
        found: EpisodeResult = run_episode(scene, model_policy(session, scene, verbose))
        best = run_episode(scene, oracle_policy(scene))
        rows.append(
            Row(
                seed=seed,
                target=scene.target.text,
                outcome=found.outcome.value,
                success=found.success,
                actions=len(found.actions),
                path_length=round(found.path_length, 2),
                collisions=found.collisions,
                final_gap=round(found.final_gap, 2),
                oracle_success=best.success,
                oracle_actions=len(best.actions),
                oracle_path_length=round(best.path_length, 2),
            )
        )
        tqdm.write(describe(rows[-1]))
    return rows


def describe(row: Row) -> str:
    """Return one line of the table."""
    mark = "yes" if row.success else "no "
    return (
        f"seed {row.seed:5d}  {row.target:14s} found {mark}  actions {row.actions:3d} (oracle {row.oracle_actions:3d})"
        f"  path {row.path_length:5.2f} m ({row.oracle_path_length:5.2f})  gap {row.final_gap:4.2f} m"
        f"  collisions {row.collisions}  {row.outcome}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; exit status 0 whatever the figures are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", choices=("target", "draft"), default="target")
    parser.add_argument("--models", default="models", help="folder that holds target/ and draft/")
    parser.add_argument("--seeds", default="0-19", help="first-last, both included")
    parser.add_argument("--difficulty", choices=[level.name.lower() for level in Difficulty], default="middle")
    parser.add_argument("--target", default="silver bottle", help="'random' takes each seed's own")
    parser.add_argument("--verbose", action="store_true", help="print every answer")
    parser.add_argument("--save", default="", help="also write JSON here")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("-")
    colour, _, name = options.target.partition(" ")
    target = None if options.target == "random" else Target(colour, name)
    session = VlmSession(load_vlm(Path(options.models) / options.policy), 512)
    seeds = range(int(first), int(last or first) + 1)
    rows = run(seeds, Difficulty[options.difficulty.upper()], target, session, options.verbose)
    share = sum(row.success for row in rows)
    oracle = sum(row.oracle_success for row in rows)
    print(f"{options.policy}, {options.difficulty}: {share}/{len(rows)} found, oracle {oracle}/{len(rows)}, "
          f"SPL {spl(rows):.2f}, collisions {sum(row.collisions for row in rows)}")  # fmt: skip
    if options.save:
        data = {"machine": platform.platform(), "options": vars(options), "rows": [asdict(row) for row in rows],
                "found": share, "oracle": oracle, "spl": spl(rows)}  # fmt: skip
        Path(options.save).parent.mkdir(parents=True, exist_ok=True)
        Path(options.save).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
