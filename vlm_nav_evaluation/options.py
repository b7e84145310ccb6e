"""Options that several commands share: models, times, drafting, prompts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from edge_drafter.settings import EdgeConfig, read_gamma
from spec_vlm_nav.graph import GUIDE, PROJECT, RESPONSE_ORDER
from speculation.language.prompts import ResponseOrder
from speculation.predictor import OFF
from speculation.settings import add_flags, fields_of, path_flag
from speculation.wire import MAX_FRAMES

MEASURED_ORDER = ResponseOrder.REASON_FIRST.value
"""What offline figures are made with, so that they go on comparing; launch files ask for the action first."""

MOST_ROOMS = 100_000
"""Rooms of a range: more are a slip of the hand, and their numbers fill the memory."""


def add_edge_flags(line: argparse.ArgumentParser, *names: str, **defaults: Any) -> None:
    """Register settings of `EdgeConfig` as flags; `defaults` stand in for its own."""
    others = {field.name for field in fields_of(EdgeConfig)}.difference(names)
    add_flags(line, EdgeConfig, without=tuple(others), defaults=defaults)


def add_pair(line: argparse.ArgumentParser) -> None:
    """Register --target-model and --draft-model: folders, the embedded pair's by default."""
    line.add_argument("--target-model", type=path_flag, default=PROJECT / "models" / "target")
    line.add_argument("--draft-model", type=path_flag, default=PROJECT / "models" / "draft")


def add_gamma(line: argparse.ArgumentParser) -> None:
    """Register --gamma."""
    shown = "draft tokens per verification; or auto, or balance (docs/decoding.md) (default: 4)"
    line.add_argument("--gamma", type=gamma, default=4, help=shown)


def add_prompt_options(line: argparse.ArgumentParser) -> None:
    """Register --response-order and --guide: how models are asked."""
    for argument, default in ((RESPONSE_ORDER, MEASURED_ORDER), (GUIDE, GUIDE.default)):
        shown = f"{argument.description} (default: %(default)s)"
        flag = f"--{argument.name.replace('_', '-')}"
        line.add_argument(flag, default=default, choices=argument.choices, help=shown)


def add_views(line: argparse.ArgumentParser) -> None:
    """Register --frames: how many frames a question shows."""
    shown = "frames of a question: the newest, and before it those of the last views (default: 1)"
    line.add_argument("--frames", type=int, dest="views", default=1, metavar="N", choices=range(1, MAX_FRAMES + 1),
                      help=shown)  # fmt: skip


def add_resumable_out(line: argparse.ArgumentParser, out: str) -> None:
    """Register --out and --restart of a command that keeps a journal in a folder."""
    folder = PROJECT / "out" / out
    shown = f"results; the same command goes on there (default: out/{out})"
    line.add_argument("--out", type=path_flag, default=folder, help=shown)
    line.add_argument("--restart", action="store_true", help="throw away what --out holds")


def add_save(line: argparse._ActionsContainer) -> None:
    """Register --save."""
    line.add_argument("--save", action="store_true", help="write the figures to benchmarks/results/")


def drafted_as(options: argparse.Namespace) -> str:
    """Return the draft length of the options, and what else they change about drafting, in words."""
    head = getattr(options, "fed_head", OFF)
    drafts = "" if head == OFF else f"drafted by the fed head {head}"
    return ", ".join(filter(None, (f"gamma {options.gamma}", getattr(options, "drafting", ""), drafts)))


def several(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return an argparse type that reads a comma-separated choice of `known` words, each once."""

    def parse(text: str) -> list[str]:
        words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
        if not words or not set(words) <= set(known):
            raise argparse.ArgumentTypeError(f"{text!r}: give one or more of {','.join(known)}")
        return words

    return parse


def numbers(least: float, most: float, what: str = "numbers") -> Callable[[str], list[float]]:
    """Return an argparse type that reads comma-separated numbers from `least` to `most`, each once, in their order."""

    def parse(text: str) -> list[float]:
        try:
            values = list(dict.fromkeys(float(word) for word in text.split(",")))
        except ValueError:
            values = []
        if not values or not all(least <= value <= most for value in values):
            shown = f"{text!r}: give {what} from {least:g} to {most:g}, with commas between"
            raise argparse.ArgumentTypeError(shown)
        return values

    return parse


def whole_numbers(option: str, text: str, most: int) -> list[int]:
    """Return comma-separated numbers from 1 to `most`, ascending, each once. Raises ValueError, naming the option."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and len(word) < 100 and 1 <= int(word) <= most for word in words):
        raise ValueError(f"{option} {text}: give numbers from 1 to {most}, joined by commas")
    return sorted(set(map(int, words)))


milliseconds = numbers(0.0, 10_000.0, "milliseconds")
"""Argparse type of round trips."""


def seeds(text: str) -> list[int]:
    """Read numbers and ranges of rooms, '0-4,7', each once; an argparse type."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)) or (dash and int(last) < int(first)):
            raise argparse.ArgumentTypeError(f"{part!r} is no seed and no range; write for example 0-19 or 3,5,8-11")
        if dash and int(last) - int(first) >= MOST_ROOMS:
            raise argparse.ArgumentTypeError(f"{part!r} has more than {MOST_ROOMS:,} rooms; give fewer")
        found.extend(range(int(first), int(last or first) + 1))
    return list(dict.fromkeys(found))


def gamma(text: str) -> int | str:
    """Read a number of draft tokens, or a rule's name; an argparse type."""
    try:
        return read_gamma(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
