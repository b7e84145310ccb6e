"""Play a recorded bag into the real navigation node at its own pace, and record what it answers into a new bag."""

from __future__ import annotations

import argparse
import signal
import threading
import time
from pathlib import Path

from evaluation.bag import read
from evaluation.setting import add_changes, add_prompt_options, decoding_arguments
from evaluation.summary import decoding_table
from spec_vlm_nav.graph import PROJECT, REPLAY_GRAPH
from spec_vlm_nav.runner import Log, Runner, free_address, require_models, take_private_domain

PLAYER = "bag_player"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `play`."""
    line = commands.add_parser("play", help="a bag into the live navigation node", description=__doc__)
    line.add_argument("bag", type=Path, help="folder of a recorded bag")
    line.add_argument("--instruction", required=True, help="what is asked, e.g. 'find the silver bottle'")
    line.add_argument("--out", type=Path, default=PROJECT / "out" / "play", help="folder of the new bag and the log")
    line.add_argument("--camera-topic", default="", help="Image or CompressedImage topic (default: the bag's first)")
    line.add_argument("--odom-topic", default="", help="Odometry topic (default: the bag's first)")
    line.add_argument("--rate", type=float, default=1.0, help="times the bag's own speed (default: 1)")
    line.add_argument("--start", type=float, default=0.0, help="seconds left out at the start (default: 0)")
    line.add_argument("--laps", type=int, default=1, help="how often; 0: until Ctrl-C (default: 1)")
    mode = REPLAY_GRAPH.argument("mode")
    line.add_argument("--mode", default=mode.default, choices=mode.choices, help=f"(default: {mode.default})")
    add_changes(line)
    add_prompt_options(line)
    line.add_argument("--profile", default="raw", help="device profile whose times are waited for (default: raw)")
    line.add_argument("--target-model", type=Path, default=PROJECT / "models" / "target")
    line.add_argument("--draft-model", type=Path, default=PROJECT / "models" / "draft")
    line.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the graph until the bag is over, then print its figures. Raises ValueError or StartError, in a sentence."""
    if not (options.bag / "metadata.yaml").exists():
        raise ValueError(f"{options.bag} is no bag: it has no metadata.yaml")
    require_models(options.target_model, options.draft_model)
    new = options.out / "bag"
    if new.resolve() == options.bag.resolve():
        raise ValueError(f"--out {options.out} would replace the bag that is played; name another folder")
    take_private_domain()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    arguments = {
        "bag": str(options.bag.resolve()),
        "instruction": options.instruction,
        "out": str(new.resolve()),
        "camera_topic": options.camera_topic,
        "odom_topic": options.odom_topic,
        "rate": str(options.rate),
        "start": str(options.start),
        "laps": str(options.laps),
        **decoding_arguments(options.mode, options.drafting, options.target_model, options.draft_model),
        "profile": options.profile,
        "response_order": options.response_order,
        "guide": options.guide,
        "verifier": free_address(),
    }
    log = Log(options.out / "log.txt")

    def hear(name: str, line: str) -> None:
        log(name, line)
        if name == PLAYER and "[INFO]" in line:
            print(line.partition("]: ")[2], flush=True)

    with Runner(REPLAY_GRAPH, arguments, hear) as runner:
        runner.start()
        while not runner.done():
            runner.check()
            time.sleep(0.2)
    stats = [message for topic, _, message in read(new) if topic.endswith("decoding_stats")]
    print(f"\n{decoding_table(stats)}\n\nbag    {new}\nlog    {log.path}")
    return 0
