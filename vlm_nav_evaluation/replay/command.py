"""`replay`: every frame of recorded bags through the real edge decoder and verifier, in every mode, and a report.

Modes and round trips take turns on every frame, in shuffled order, so that whatever else the machine does falls on all
of them. Each answer is on disk at once: the same command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from adapters_training.sources import LeftOut
from edge_drafter import Mode
from edge_drafter.decoder import EdgeDecoder
from edge_drafter.question import VerifierLost
from speculation.language.prompts import Guidance, parse_answer
from speculation.links import load_link
from speculation.predictor import name as predictor_name
from speculation.profiles import load_profile
from speculation.settings import add_flags, from_flags, path_flag
from speculation.vlm.load import load_vlm
from speculation.wire import Welcome, jpeg_of
from vlm_nav_evaluation.bags.datasets import KINDS, DatasetQuestions, files_of, open_questions
from vlm_nav_evaluation.bags.frames import FrameSource, Selection
from vlm_nav_evaluation.experiment.reference_answers import ModelAlone
from vlm_nav_evaluation.experiment.run import Answer, Arm, Question, take_turns
from vlm_nav_evaluation.experiment.sockets import Edges, sockets
from vlm_nav_evaluation.journal import Journal
from vlm_nav_evaluation.options import (
    add_edge_flags,
    add_gamma,
    add_pair,
    add_prompt_options,
    add_resumable_out,
    add_views,
    milliseconds,
    several,
)
from vlm_nav_evaluation.replay.report import ReplayArm, build, headlines, left_out_lines, text, write
from vlm_nav_evaluation.results import machine
from vlm_nav_evaluation.verifier_process import CONNECT_LIMIT_S

STEPS = "steps"
"""Name of the journal in the output folder."""
OWN_VERIFIER = "its own"
FINGERPRINT_BYTES = 1 << 16
SETTINGS = (
    "modes", "rtt_ms", "profile", "link", "gamma", "drafting", "fed_head", "max_tokens", "dtype", "topic", "skip",
    "fps", "limit", "instruction", "anew", "asked", "response_order", "check", "views", "answers",
)  # fmt: skip
"""Options that shape what is measured, beside the bags and the models."""


class Bags:
    """The frames of some bags as questions, one after the other.

    `notes`: what else a report needs to know, by question; `left_out`: what cannot be used. A question holds at most
    `views` frames of a bag about one instruction, the newest last.
    """

    def __init__(
        self, bags: dict[str, Path], selection: Selection, objects: Any, stack: ExitStack, views: int = 1
    ) -> None:
        self._views = views
        self.left_out: list[dict[str, Any]] = []
        self.notes: dict[str, dict[str, Any]] = {}
        self._sources: dict[str, FrameSource | DatasetQuestions] = {}
        for name, path in bags.items():
            try:
                source = open_questions(path, selection, objects)
            except ValueError as error:
                self.leave_out(name, None, str(error))
            else:
                stack.push(source)
                self._sources[name] = source

    def __len__(self) -> int:
        """Return about how many frames come."""
        return sum(map(len, self._sources.values()))

    def __iter__(self) -> Iterator[Question]:
        for bag, source in self._sources.items():
            seen, instruction = deque[bytes](maxlen=self._views), ""
            for item in source:
                if isinstance(item, LeftOut):
                    self.leave_out(bag, item.index, item.reason)
                    continue
                name = f"{bag}:{item.index}"
                if item.instruction != instruction:
                    seen.clear()
                    instruction = item.instruction
                seen.append(item.jpeg)
                self.notes[name] = {
                    "bag": bag,
                    "index": item.index,
                    "stamp_ns": item.stamp_ns,
                    "image": hashlib.sha256(item.jpeg).hexdigest()[:16],
                    "instruction": item.instruction,
                    "prompt": item.prompt,
                    "oracle": item.label.action if item.label is not None else "",
                    "given": list(item.given) if item.given is not None else [],
                }
                yield Question(item.prompt, jpeg_of(seen), name)

    def leave_out(self, bag: str, frame: int | None, reason: str) -> None:
        """Note a bag, or one of its frames, that is not evaluated."""
        self.left_out.append({"bag": bag, "frame": frame, "reason": reason})

    def noted(self, arm: Arm, edges: Edges, edge: EdgeDecoder) -> Arm:
        """Return an arm whose answers carry the question's notes, their text and their action."""
        decode = edges.decoder(arm)

        def ask(question: Question) -> Answer:
            answer = decode(question)
            words = edge.text(answer.tokens)
            action = parse_answer(words).action
            found = {"text": words, "action": action.text if action is not None else ""}
            return replace(answer, more={**self.notes[question.name], **answer.more, **found})

        return Arm(arm.name, decode=ask)


def arms_of(modes: Sequence[str], rtts_ms: Sequence[float]) -> list[ReplayArm]:
    """Return every mode with every round trip; mode `edge` has no link, so it comes once."""
    return [ReplayArm(mode, rtt) for rtt in rtts_ms for mode in modes if mode != "edge" or rtt == rtts_ms[0]]


def connected(edges: Sequence[EdgeDecoder], profile: str) -> Welcome:
    """Wait for all links. Raises VerifierLost without a verifier, ValueError where another profile is declared."""
    for edge in edges:
        if edge.link is None or not edge.link.wait_nominal(CONNECT_LIMIT_S) or edge.link.welcome is None:
            raise VerifierLost(edge.link.why if edge.link is not None else "no link")
        welcome = edge.link.welcome
    if welcome.profile != profile:
        raise ValueError(
            f"the verifier declares profile {welcome.profile!r}, this replay {profile!r}; start both with the same"
        )
    return welcome


def target_alone(options: argparse.Namespace, welcome: Welcome | None) -> ModelAlone:
    """Load the target to answer alone. Raises ValueError where the verifier serves another one."""
    vlm = load_vlm(options.target_model, dtype=options.dtype)
    if welcome is not None and vlm.fingerprint != welcome.model:
        raise ValueError(
            f"--check: {options.target_model} is model {vlm.fingerprint}, the verifier serves {welcome.model}; "
            "name the verifier's with --target-model"
        )
    return ModelAlone(vlm, options.max_tokens, options.answers)


def name_bags(paths: Sequence[Path]) -> dict[str, Path]:
    """Return short names that differ: the last part of the path, the whole path where two are equal."""
    if len(set(paths)) < len(paths):
        raise ValueError("a bag is named twice")
    last = [path.resolve().name for path in paths]
    return {name if last.count(name) == 1 else str(path): path for name, path in zip(last, paths, strict=True)}


def fingerprint(bag: Path) -> str:
    """Return 12 hex digits that name a bag's files: names, sizes, first and last 64 KiB. '-' where there is nothing."""
    digest = hashlib.sha256()
    for file in files_of(bag):
        if not file.is_file():
            return "-"
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}\n".encode())
        with file.open("rb") as data:
            digest.update(data.read(FINGERPRINT_BYTES))
            data.seek(max(0, size - FINGERPRINT_BYTES))
            digest.update(data.read())
    return digest.hexdigest()[:12]


def run(options: argparse.Namespace) -> int:
    """Run the command. Raises ValueError, RuntimeError or VerifierLost, in one sentence, where it cannot."""
    ways = arms_of(options.modes, options.rtt_ms)
    selection = from_flags(Selection, {**vars(options), "order": options.response_order, "guide": False})
    declared = {"declared": asdict(load_profile(options.profile)), "declared_link": asdict(load_link(options.link))}
    bags = name_bags(options.bags)
    linked = set(options.modes) != {Mode.EDGE.value}
    with ExitStack() as stack:
        edges = stack.enter_context(sockets(options, options.modes, address=options.verifier))
        shared = {} if linked else {"mode": Mode.EDGE.value}
        arms = [Arm(way.label, way.mode, {**shared, "extra_rtt_s": way.rtt_ms / 1e3}) for way in ways]
        decoders = [edges.edge(**arm.changes) for arm in arms]
        welcome = connected(decoders, options.profile) if linked else None
        if options.check:
            arms.append(target_alone(options, welcome).arm())
        # The target's list of objects; the draft's where no mode needs a target.
        objects = decoders[0].objects(CONNECT_LIMIT_S)
        guide = Guidance(options.guide).applies(objects)
        settings = {
            "bags": {name: fingerprint(path) for name, path in bags.items()},
            **{name: getattr(options, name) for name in SETTINGS},
            "predictor": predictor_name(options.predictor, edges.vlm.folder),
            "draft": edges.vlm.fingerprint,
            "target": welcome.model if welcome is not None else "none",
            "layers": welcome.num_layers if welcome is not None else 0,
            "exit_layers": list(welcome.exit_layers) if welcome is not None else [],
            "verifier": options.verifier or OWN_VERIFIER,
            "guide": guide,
            **declared,
        }
        journal = Journal(options.out, STEPS, settings, options.restart)
        if done := sum(1 for _ in journal.pieces()):
            print(f"going on: {done} results are in {options.out} already")
        asked = Bags(bags, structs.replace(selection, guide=guide), objects, stack, options.views)
        ready = [asked.noted(arm, edges, decoders[0]) for arm in arms]
        measured = take_turns(ready, asked, journal=journal, leave_out=True, total=len(asked))
    for name, reason in measured.left_out.items():
        bag, _, index = name.rpartition(":")
        asked.leave_out(bag, int(index), reason)
    asked.left_out.sort(key=lambda entry: (list(bags).index(entry["bag"]), entry["frame"] or 0))
    data = build(measured, ways, settings, asked.left_out, machine())
    page = write(options.out, data)
    print("\n".join(headlines(data)), text(data), sep="\n\n")
    for line in left_out_lines(data):
        print(f"left out: {line}")
    print(f"\nreport {page}")
    return 0


def add_options(line: argparse.ArgumentParser) -> None:
    """Register the options of `replay`."""
    line.add_argument("bags", nargs="+", type=path_flag, metavar="BAG", help=KINDS)
    modes = [mode.value for mode in Mode]
    line.add_argument("--modes", type=several(modes), default=["cloud", "sd", "fsd", "full"],
                      help=f"some of {', '.join(modes)} (default: cloud,sd,fsd,full)")  # fmt: skip
    line.add_argument("--rtt-ms", type=milliseconds, default=[0.0], metavar="MS[,MS]",
                      help="round trips declared on top of the profile's own (default: 0)")  # fmt: skip
    add_prompt_options(line)
    add_pair(line)
    add_gamma(line)
    names = ("profile", "link", "drafting", "predictor", "fed_head", "answers", "max_tokens", "dtype")
    add_edge_flags(line, *names)
    add_views(line)
    line.add_argument("--exits", type=path_flag, help="folder of exit heads (default: where the verifier finds them)")
    add_resumable_out(line, "replay")
    line.add_argument("--verifier", default="", metavar="ADDRESS", help="a running one; default: a process of its own")
    line.add_argument("--allow-plain", action="store_true", help="trust a --verifier elsewhere without keys")
    add_edge_flags(line, "keys", "service_class")
    add_flags(line, Selection, without=("order", "guide", "anew", "asked"))
    # A flag that may be followed by a bag takes no value.
    line.add_argument("--asked", action="store_true", help="only the frames that vlm_nav asked about while recording")
    line.add_argument("--anew", action="store_true", help="put the instruction even where the bag has what was asked")
    line.add_argument("--check", action="store_true", help="also let the target answer alone and compare with that")
