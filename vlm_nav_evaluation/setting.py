"""What every evaluation shares: a verifier process of its own, the machine in a line, options of the command line."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edge_drafter import Mode
from edge_drafter.settings import read_gamma
from spec_vlm_nav.graph import GUIDE, PROJECT, RESPONSE_ORDER
from spec_vlm_nav.runner import free_address
from speculation.language.grammar import CONSTRAINED, FREE
from speculation.language.prompts import ResponseOrder
from speculation.machine import host
from speculation.predictor import AUTO, OFF
from speculation.settings import path_flag
from speculation.vlm.load import DTYPES
from speculation.wire import MAX_FRAMES

MEASURED_ORDER = ResponseOrder.REASON_FIRST.value
"""What offline figures are made with, so that they go on comparing; launch files ask for the action first."""
START_LIMIT_S = 120.0
CONNECT_LIMIT_S, SILENCE_S = 20.0, 10.0
"""More patient than a robot: on a busy machine a verifier may pause for longer than a robot would wait."""


@contextmanager
def verifier(model: Path, *flags: str) -> Iterator[str]:
    """Run a verifier process and yield its address once it serves. Raises RuntimeError, with its log, if it ends."""
    address = free_address()
    command = [sys.executable, "-m", "cloud_verifier", "serve", "--model", str(model), "--bind", address, *flags]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "verifier.log"
        with log.open("w") as sink:
            paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
            process = subprocess.Popen(command, cwd=PROJECT, env=environment, stderr=sink)
        try:
            end = time.monotonic() + START_LIMIT_S
            while " serving " not in log.read_text():
                if process.poll() is not None:
                    raise RuntimeError(f"the verifier did not start: {log.read_text()[-1000:].strip()}")
                if time.monotonic() > end:
                    raise RuntimeError(f"the verifier did not start within {START_LIMIT_S:g} s")
                time.sleep(0.05)
            yield address
            if process.poll() is not None:
                raise RuntimeError(f"the verifier ended by itself: {log.read_text()[-1000:].strip()}")
        finally:
            process.terminate()
            process.wait(timeout=30)


def draft_flags(modes: Sequence[str], draft_model: Path) -> list[str]:
    """Return a verifier's flags for these modes: a draft model beside the target where one of them needs it."""
    return ["--draft-model", str(draft_model)] if Mode.SERVER_SD.value in modes else []


def head_flags(options: argparse.Namespace) -> list[str]:
    """Return a verifier's flags for a fed head that --fed-head names, if it does."""
    folder = getattr(options, "fed_head", OFF)
    return [] if folder == OFF else ["--fed-head", str(Path(folder).resolve())]


def frame_flags(options: argparse.Namespace) -> list[str]:
    """Return a verifier's flags where --frames asks about several frames, whatever its model was trained on."""
    views = getattr(options, "views", 1)
    return ["--frames", str(views)] if views > 1 else []


def machine() -> str:
    """Return what the figures were measured on."""
    import torch

    return f"{host()} at the end; Python {platform.python_version()}, torch {torch.__version__}"


def several(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return an argparse type that reads a comma-separated choice of `known` words, each once."""

    def parse(text: str) -> list[str]:
        words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
        strange = [word for word in words if word not in known]
        if strange or not words:
            raise argparse.ArgumentTypeError(f"{text!r}: give one or more of {','.join(known)}")
        return words

    return parse


def add_pair(line: argparse.ArgumentParser) -> None:
    """Register --target-model and --draft-model: folders, the embedded pair's by default."""
    line.add_argument("--target-model", type=path_flag, default=PROJECT / "models" / "target")
    line.add_argument("--draft-model", type=path_flag, default=PROJECT / "models" / "draft")


def add_profile(line: argparse.ArgumentParser, default: str = "raw") -> None:
    """Register --profile: the device profile whose times are waited for."""
    line.add_argument("--profile", default=default, help="declared delays; raw: none (default: %(default)s)")


def add_prompt_options(line: argparse.ArgumentParser) -> None:
    """Register --response-order and --guide: how models are asked."""
    for argument, default in ((RESPONSE_ORDER, MEASURED_ORDER), (GUIDE, GUIDE.default)):
        shown = f"{argument.description} (default: %(default)s)"
        flag = f"--{argument.name.replace('_', '-')}"
        line.add_argument(flag, default=default, choices=argument.choices, help=shown)


def add_decoding(line: argparse.ArgumentParser, modes: Sequence[str], max_tokens: int, out: str) -> None:
    """Register what `replay` and `closed-loop` share: what is decoded how, under which conditions, and where it goes.

    out: the default folder of the results, inside the project's `out`.
    """
    line.add_argument("--modes", type=several(modes), default=["cloud", "sd", "fsd", "full"],
                      help=f"some of {', '.join(modes)} (default: cloud,sd,fsd,full)")  # fmt: skip
    line.add_argument("--rtt-ms", type=milliseconds, default=[0.0], metavar="MS[,MS]",
                      help="round trips declared on top of the profile's own (default: 0)")  # fmt: skip
    for add in (add_prompt_options, add_profile, add_link, add_pair, add_drafting, add_predictor, add_fed_head):
        add(line)
    shown = "frames of a question: the newest, and before it those of the last views (default: 1)"
    line.add_argument("--frames", type=int, dest="views", default=1, metavar="N", choices=range(1, MAX_FRAMES + 1),
                      help=shown)  # fmt: skip
    add_answers(line)
    line.add_argument("--exits", type=path_flag, help="folder of exit heads (default: where the verifier finds them)")
    line.add_argument("--max-tokens", type=int, default=max_tokens, help="(default: %(default)s)")
    line.add_argument("--dtype", default="float32", choices=list(DTYPES))
    line.add_argument(
        "--out", type=path_flag, default=PROJECT / "out" / out, help="results; the same command goes on there"
    )
    line.add_argument("--restart", action="store_true", help="throw away what --out holds")


def add_answers(line: argparse.ArgumentParser) -> None:
    """Register --answers, as `EdgeConfig.answers` has it."""
    shown = "constrained: by a grammar, as robots have it, so that each is readable; free: as the target gives them"
    line.add_argument("--answers", default=FREE, choices=[FREE, CONSTRAINED], help=f"{shown} (default: %(default)s)")


def milliseconds(text: str) -> list[float]:
    """Read comma-separated milliseconds from 0 to 10000, each once, in their order; an argparse type."""
    try:
        values = list(dict.fromkeys(float(word) for word in text.split(",")))
    except ValueError:
        values = []
    if not values or not all(0.0 <= value <= 10_000.0 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r}: give milliseconds from 0 to 10000, e.g. 0,40")
    return values


def add_predictor(line: argparse.ArgumentParser) -> None:
    """Register --predictor, as `EdgeConfig.predictor` has it."""
    shown = "acceptance predictor; auto: the one in the draft model's folder, off: none (default: auto)"
    line.add_argument("--predictor", default=AUTO, metavar="FOLDER", help=shown)


def add_fed_head(line: argparse.ArgumentParser) -> None:
    """Register --fed-head, as `EdgeConfig.fed_head` has it."""
    shown = "fed head that drafts in the draft model's place, e.g. models/fed_head (default: none)"
    line.add_argument("--fed-head", default=OFF, metavar="FOLDER", help=shown)


def add_link(line: argparse.ArgumentParser) -> None:
    """Register --link, as `EdgeConfig.link` has it."""
    shown = "link of config/links.json to emulate, the profile's delay on top (default: none)"
    line.add_argument("--link", default="", metavar="NAME", help=shown)


def add_drafting(line: argparse.ArgumentParser) -> None:
    """Register --gamma and --drafting: what modes that draft do otherwise than they are known for."""
    shown = "draft tokens per verification, auto or balance (default: 4)"
    line.add_argument("--gamma", type=gamma, default=4, help=shown)
    shown = "changes of the drafting settings of every mode that drafts, e.g. interrupt=off,width=3 (docs/decoding.md)"
    line.add_argument("--drafting", default="", metavar="NAME=VALUE,...", help=shown)


def drafted_as(options: argparse.Namespace) -> str:
    """Return the options of `add_drafting` in words."""
    changes = getattr(options, "drafting", "")
    head = getattr(options, "fed_head", OFF)
    drafts = "" if head == OFF else f", drafted by the fed head {head}"
    return f"gamma {options.gamma}" + (f", {changes}" if changes else "") + drafts


def gamma(text: str) -> int | str:
    """Read a number of draft tokens, or a rule's name; an argparse type."""
    try:
        return read_gamma(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
