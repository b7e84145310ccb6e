"""`play`: a recorded bag into the real navigation node at its own pace; what it answers goes into a new bag."""

from __future__ import annotations

import argparse
import time

from spec_vlm_nav.graph import PROJECT, REPLAY_GRAPH
from spec_vlm_nav.runner import Runner
from speculation.settings import path_flag
from vlm_nav_evaluation.bags.datasets import KINDS, check_recording
from vlm_nav_evaluation.bags.files import is_inside, read
from vlm_nav_evaluation.graph_options import DECODING, Log, add_graph_flags, prepare
from vlm_nav_evaluation.report.tables import decoding_table

PLAYER = "bag_player"


def add_options(line: argparse.ArgumentParser) -> None:
    """Register the options of `play`."""
    line.add_argument("bag", type=path_flag, help=KINDS)
    line.add_argument("--instruction", required=True, help=REPLAY_GRAPH.argument("instruction").description)
    line.add_argument(
        "--out", type=path_flag, default=PROJECT / "out" / "play", help="folder of the new bag and the log"
    )
    add_graph_flags(line, REPLAY_GRAPH, "camera_topic", "odom_topic", "rate", "start", "laps", *DECODING)


def run(options: argparse.Namespace) -> int:
    """Run the graph until the bag is over, then print its figures. Raises ValueError or StartError, in a sentence."""
    check_recording(options.bag, options.camera_topic, "--camera-topic")
    new = options.out / "bag"
    if is_inside(options.bag, new):
        raise ValueError(f"--out {options.out} would replace the bag that is played; name another folder")
    arguments = prepare(REPLAY_GRAPH, options, bag=str(options.bag.resolve()), out=str(new.resolve()))
    log = Log(options.out / "log.txt")

    def on_line(name: str, line: str) -> None:
        log(name, line)
        if name == PLAYER and "[INFO]" in line:
            print(line.partition("]: ")[2], flush=True)

    with Runner(REPLAY_GRAPH, arguments, on_line) as runner:
        runner.start()
        while not runner.done():
            runner.check()
            time.sleep(0.2)
    stats = [message for topic, _, message in read(new) if topic.endswith("decoding_stats")]
    print(f"\n{decoding_table(stats)}\n\nbag    {new}\nlog    {log.path}")
    return 0
