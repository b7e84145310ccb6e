"""Step latency of this checkout and another one, frame by frame in one run: did a change make anything slower?

Each checkout decodes in a process of its own, with an edge and a verifier of its own, over real sockets and on this
machine's own times. They take turns on every frame and mode, in shuffled order, and the other one waits meanwhile.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from edge_drafter import DecodingStats, Mode
from spec_vlm_nav.graph import PROJECT
from speculation.wire import frames_of
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.questions import warmed_up
from vlm_nav_evaluation.experiment.run import WARM_UP, Answer, Arm, Question, take_turns
from vlm_nav_evaluation.figures import spread
from vlm_nav_evaluation.options import add_save
from vlm_nav_evaluation.results import provenance, settings_of, write_result
from vlm_nav_evaluation.tables import MS, Column, figures_table
from vlm_nav_evaluation.verifier_process import CONNECT_LIMIT_S, SILENCE_S, verifier

ROS_PACKAGE = Path("ros_ws/src/spec_vlm_nav")
CHILD = """
import base64, json, sys
from pathlib import Path
from edge_drafter.decoder import EdgeDecoder
from edge_drafter.settings import EdgeConfig
draft, settings = json.loads(sys.stdin.readline())
edge = EdgeDecoder(EdgeConfig.flat(Path(draft), **settings))
for line in sys.stdin:
    prompt, jpeg, mode = json.loads(line)
    result = edge.decode(prompt, base64.b64decode(jpeg), mode=mode)
    print(json.dumps([result.stats.total_s, list(result.tokens)]), flush=True)
edge.close()
"""
COLUMNS = (
    Column("this checkout, ms", "this", ".1f", MS),
    Column("the other, ms", "other", ".1f", MS),
    Column("times as fast (95 %)", "faster", ".3f"),
)


@contextmanager
def checkout(folder: Path, options: argparse.Namespace) -> Iterator[Callable[[str, Question], Answer]]:
    """Run the code of one checkout and yield its decoder."""
    # Only the code differs: both take this machine's libraries and the same models.
    paths = os.pathsep.join([str(folder), str(folder / ROS_PACKAGE), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen([sys.executable, "-c", CHILD], cwd=folder, env={**os.environ, "PYTHONPATH": paths},
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    sink, source = process.stdin, process.stdout

    def send(values: list[Any]) -> None:
        sink.write(json.dumps(values) + "\n")
        sink.flush()

    def decode(mode: str, question: Question) -> Answer:
        send([question.prompt, base64.b64encode(frames_of(question.jpeg)[-1]).decode(), mode])
        if not (line := source.readline()):
            raise ValueError(f"{folder}: its code failed; its error stands above")
        seconds, tokens = json.loads(line)
        return Answer(tuple(tokens), DecodingStats(mode, tokens=len(tokens), total_s=seconds))

    with verifier(options.target_model, "--dtype", options.dtype, project=folder) as address:
        settings = {"verifier": address, "dtype": options.dtype, "max_tokens": options.max_tokens}
        send([str(options.draft_model), {**settings, "silence_s": SILENCE_S, "resume_s": CONNECT_LIMIT_S}])
        try:
            yield decode
        finally:
            sink.close()
            process.wait(60)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    modes = [mode.value for mode in Mode if mode is not Mode.SERVER_SD]
    line = command.experiment_line("benchmarks.against", __doc__, 60)
    command.add_modes(line, modes, ["cloud", "sd", "full"])
    command.add_journal(line)
    add_save(line)
    line.add_argument("--with", dest="other", type=Path, required=True, metavar="DIR", help="the other checkout")
    return line


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError, in one sentence, where it cannot."""
    folders = {"this": PROJECT, "other": options.other.resolve()}
    if not all((folders["other"] / part).is_dir() for part in (ROS_PACKAGE, "speculation")):
        raise ValueError(f"--with {folders['other']}: no checkout of this project")
    before, asked = warmed_up(options, options.steps, WARM_UP)
    with ExitStack() as open_checkouts:
        sides = {side: open_checkouts.enter_context(checkout(each, options)) for side, each in folders.items()}
        arms: list[Arm] = [
            Arm(f"{mode} {side}", decode=partial(decode, mode))
            for mode in options.modes
            for side, decode in sides.items()
        ]
        measured = take_turns(arms, asked, before, seed=options.seed, journal=command.journal_of(options))
    rows: dict[str, dict[str, Any]] = {}
    for mode in options.modes:
        rows[mode] = {side: spread(measured.seconds(f"{mode} {side}")) for side in sides}
        rows[mode]["faster"] = measured.times_faster(f"{mode} other", f"{mode} this")
        pairs = zip(*(measured.answers[f"{mode} {side}"] for side in sides), strict=True)
        rows[mode]["different"] = sum(one.tokens != other.tokens for one, other in pairs)
    different = sum(row["different"] for row in rows.values())
    print(f"{command.described(options)}: median (min-max); ratios frame by frame")
    print(figures_table("mode", rows, COLUMNS))
    about = provenance(options)
    print(f"answers that differ: {different}\n{about['machine']}")
    if options.save:
        about["settings"] = settings_of(options, "other")
        write_result("against", {**about, "modes": rows, "different": different})


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
