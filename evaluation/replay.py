"""`replay`: every frame of recorded bags through the real edge decoder and verifier, in every mode, and a report.

Modes and round trips take turns on every frame, in rotating order, so that whatever else the machine does falls on all
of them. Each result is on disk at once: the same command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from edge_drafter import DecodingStats, Mode
from edge_drafter.decoder import EdgeConfig, EdgeDecoder
from edge_drafter.reply import VerifierLost
from evaluation.bags.frames import BagFrame, FrameSource, LeftOut, Selection
from evaluation.results import TARGET_ALONE, Arm, FrameKey, Results, Step, arms_of
from evaluation.setting import (
    CONNECT_LIMIT_S,
    SILENCE_S,
    add_drafting,
    add_link,
    add_predictor,
    add_prompt_options,
    draft_flags,
    machine,
    milliseconds,
    several,
    verifier,
)
from spec_vlm_nav.graph import PROJECT
from speculation.emulation import load_link
from speculation.predictor import name as predictor_name
from speculation.profile import load_profile
from speculation.prompts import Guidance, ResponseOrder, Vocabulary, parse_answer
from speculation.trace import Trace
from speculation.vlm.load import DTYPES, Vlm, load_vlm
from speculation.vlm.session import VlmSession
from speculation.wire import MAX_ANSWER_TOKENS, Welcome

WARM_UP = 2
OWN_VERIFIER = "its own"
CAPACITY = 2048
FINGERPRINT_BYTES = 1 << 16


@dataclass(frozen=True)
class Answered:
    """What a decoder said to a frame."""

    tokens: tuple[int, ...]
    stats: DecodingStats
    rtt_s: float = -1.0


class Decoders:
    """The draft model once, a link per round trip, and the target alone where it is asked for."""

    def __init__(self, options: argparse.Namespace, address: str, arms: Sequence[Arm]) -> None:
        """Connect every link. Raises ValueError for what cannot be used, VerifierLost where nobody answers."""
        self._options = options
        self.vlm: Vlm = load_vlm(options.draft_model, dtype=options.dtype)
        self.eos = self.vlm.eos
        self._edges: dict[float, EdgeDecoder] = {}
        self._target: VlmSession | None = None
        linked = any(arm.mode != Mode.EDGE for arm in arms)
        for rtt in dict.fromkeys(arm.rtt_ms for arm in arms):
            # Nobody looks at the spans, and a long bag would fill the memory with them.
            self._edges[rtt] = EdgeDecoder(self._config(address, rtt, linked), Trace(limit=1), vlm=self.vlm)
        self.welcome: Welcome | None = self._greeting() if linked else None
        self.objects = (
            Vocabulary.load(self.vlm.folder)
            if self.welcome is None
            else Vocabulary.of(self.welcome.colours, self.welcome.classes)
        )
        """What the model was trained to find that is asked: the target, or the draft where no mode needs a target."""

    def load_target(self, folder: Path) -> None:
        """Load the target to answer alone. Raises ValueError where the verifier serves another one."""
        vlm = load_vlm(folder, dtype=self._options.dtype)
        if self.welcome is not None and vlm.fingerprint != self.welcome.model:
            raise ValueError(
                f"--check: {folder} is model {vlm.fingerprint}, the verifier serves {self.welcome.model}; "
                "name the verifier's with --target-model"
            )
        self._target = VlmSession(vlm, CAPACITY)

    def answer(self, frame: BagFrame, arm: Arm) -> Answered:
        """Decode one frame in one arm. Raises ValueError for a frame that cannot be used, VerifierLost."""
        if arm.mode == TARGET_ALONE:
            return self._alone(frame)
        edge = self._edges[arm.rtt_ms]
        result = edge.decode(frame.prompt, frame.jpeg, mode=arm.mode)
        return Answered(result.tokens, result.stats, edge.link_figures()[1])

    def text(self, tokens: tuple[int, ...]) -> str:
        """Return the words of an answer."""
        return str(self.vlm.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def close(self) -> None:
        """Close the links."""
        for edge in self._edges.values():
            edge.close()

    def _alone(self, frame: BagFrame) -> Answered:
        if self._target is None:
            raise ValueError("the target alone was not loaded")
        began = time.perf_counter()
        answer = self._target.greedy(frame.prompt, frame.jpeg, self._options.max_tokens)
        tokens = tuple(token for token, _ in answer)
        stats = DecodingStats(mode=TARGET_ALONE, tokens=len(tokens), total_s=time.perf_counter() - began)
        return Answered(tokens, stats)

    def _config(self, address: str, rtt_ms: float, linked: bool) -> EdgeConfig:
        options = self._options
        return EdgeConfig(
            options.draft_model,
            address,
            Mode.FSD.value if linked else Mode.EDGE.value,
            options.profile,
            options.keys,
            options.gamma,
            options.drafting,
            max_tokens=options.max_tokens,
            dtype=options.dtype,
            capacity=CAPACITY,
            predictor=options.predictor,
            silence_s=SILENCE_S,
            resume_s=CONNECT_LIMIT_S,
            link=options.link,
            extra_rtt_s=rtt_ms / 1e3,
            allow_plain=options.allow_plain,
        )

    def _greeting(self) -> Welcome:
        welcome: Welcome
        for edge in self._edges.values():
            link = edge.link
            if link is None or not link.wait_nominal(CONNECT_LIMIT_S) or link.welcome is None:
                self.close()
                raise VerifierLost(link.why if link is not None else "no link")
            welcome = link.welcome
        if welcome.profile != self._options.profile:
            self.close()
            raise ValueError(
                f"the verifier declares profile {welcome.profile!r}, this replay {self._options.profile!r}; start both "
                "with the same"
            )
        return welcome


def evaluate(
    bags: dict[str, Path], selection: Selection, decoders: Decoders, arms: Sequence[Arm], results: Results
) -> list[dict[str, Any]]:
    """Decode whatever is not yet in `results`; return what was left out, as {bag, frame, reason}.

    Raises VerifierLost when the verifier is gone; everything up to then is kept.
    """
    left_out: list[dict[str, Any]] = []
    warm = False
    for name, path in bags.items():
        try:
            source = FrameSource(path, selection, decoders.objects)
        except ValueError as error:
            left_out.append({"bag": name, "frame": None, "reason": str(error)})
            continue
        with source, tqdm(total=len(source), desc=name, unit="frame", disable=None) as bar:
            for number, item in enumerate(source):
                bar.update()
                if isinstance(item, LeftOut):
                    left_out.append({"bag": name, "frame": item.index, "reason": item.reason})
                    continue
                key = FrameKey(name, item.index)
                turn = number % len(arms)
                due = [arm for arm in (*arms[turn:], *arms[:turn]) if (key, arm) not in results]
                try:
                    if due and not warm:
                        warm = True
                        _warm_up(decoders, item, arms)
                    for arm in due:
                        results.add(_step(decoders, key, item, arm))
                except ValueError as error:
                    left_out.append({"bag": name, "frame": item.index, "reason": str(error)})
    return left_out


def _warm_up(decoders: Decoders, frame: BagFrame, arms: Sequence[Arm]) -> None:
    """First forwards pay for what the libraries put off; no step should."""
    for _ in range(WARM_UP):
        for arm in arms:
            decoders.answer(frame, arm)


def _step(decoders: Decoders, key: FrameKey, frame: BagFrame, arm: Arm) -> Step:
    answered = decoders.answer(frame, arm)
    words = decoders.text(answered.tokens)
    action = parse_answer(words).action
    return Step(
        frame=key,
        arm=arm,
        stamp_ns=frame.stamp_ns,
        image=hashlib.sha256(frame.jpeg).hexdigest()[:16],
        instruction=frame.instruction,
        prompt=frame.prompt,
        tokens=answered.tokens,
        text=words,
        action=action.text if action is not None else "",
        oracle=frame.label.action.text if frame.label is not None else "",
        rtt_s=answered.rtt_s,
        stats=answered.stats,
    )


def name_bags(paths: Sequence[Path]) -> dict[str, Path]:
    """Return short names that tell the bags apart: the last part of the path, the whole path where two are equal."""
    if len(set(paths)) < len(paths):
        raise ValueError("a bag is named twice")
    last = [path.resolve().name for path in paths]
    return {name if last.count(name) == 1 else str(path): path for name, path in zip(last, paths, strict=True)}


def fingerprint(bag: Path) -> str:
    """Return 12 hex digits that name a bag's files: names, sizes, first and last 64 KiB. '-' where there is nothing."""
    files = sorted(file for file in bag.rglob("*") if file.is_file()) if bag.is_dir() else [bag]
    digest = hashlib.sha256()
    for file in files:
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
    arms = arms_of(options.modes, options.rtt_ms)
    selection = Selection(
        options.topic, options.skip, options.fps, options.limit, options.instruction,
        ResponseOrder(options.response_order), anew=options.anew,
    )  # fmt: skip
    profile = load_profile(options.profile)
    link = load_link(options.link)
    bags = name_bags(options.bags)
    for flag, value in (("gamma", options.gamma), ("max-tokens", options.max_tokens)):
        if isinstance(value, int) and not 1 <= value <= MAX_ANSWER_TOKENS:
            raise ValueError(f"--{flag} {value} is outside 1 to {MAX_ANSWER_TOKENS}")
    needs_link = any(arm.mode != Mode.EDGE for arm in arms)
    with ExitStack() as stack:
        address = options.verifier
        if needs_link and not address:
            flags = ["--profile", profile.name, "--dtype", options.dtype]
            flags += ["--exits", str(options.exits)] if options.exits else []
            flags += draft_flags(options.modes, options.draft_model)
            address = stack.enter_context(verifier(options.target_model, *flags))
        decoders = stack.enter_context(closing(Decoders(options, address or EdgeConfig.verifier, arms)))
        if options.check:
            decoders.load_target(options.target_model)
        guide = Guidance(options.guide).applies(decoders.objects)
        settings = _settings(options, bags, decoders) | {
            "guide": guide,
            "declared": asdict(profile),
            "declared_link": asdict(link),
        }
        results = Results(options.out, settings, options.restart)
        if len(results):
            print(f"going on: {len(results)} results are in {options.out} already")
        asked = [*arms, *([Arm(TARGET_ALONE)] if options.check else [])]
        left_out = evaluate(bags, replace(selection, guide=guide), decoders, asked, results)
    from evaluation.replay_report import build, headlines, left_out_lines, text, write

    data = build(results.steps(), settings, left_out, machine())
    page = write(options.out, data)
    print("\n".join(headlines(data)), text(data), sep="\n\n")
    for line in left_out_lines(data):
        print(f"left out: {line}")
    print(f"\nreport {page}")
    return 0


def _settings(options: argparse.Namespace, bags: dict[str, Path], decoders: Decoders) -> dict[str, Any]:
    welcome = decoders.welcome
    names = (
        "modes", "rtt_ms", "profile", "link", "gamma", "drafting", "max_tokens", "dtype", "topic", "skip", "fps",
        "limit", "instruction", "anew", "response_order", "check",
    )  # fmt: skip
    return {
        "bags": {name: fingerprint(path) for name, path in bags.items()},
        **{name: getattr(options, name) for name in names},
        "predictor": predictor_name(options.predictor, decoders.vlm.folder),
        "draft": decoders.vlm.fingerprint,
        "target": welcome.model if welcome is not None else "none",
        "layers": welcome.num_layers if welcome is not None else 0,
        "exit_layers": list(welcome.exit_layers) if welcome is not None else [],
        "verifier": options.verifier or OWN_VERIFIER,
    }


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    line = commands.add_parser("replay", help="decode the frames of bags in several modes", description=__doc__)
    line.add_argument("bags", nargs="+", type=Path, metavar="BAG", help="rosbag2 folder, or a single .mcap or .db3")
    line.add_argument("--modes", type=several([mode.value for mode in Mode]),
                      default=["cloud", "sd", "fsd", "full"],
                      help=f"of {', '.join(mode.value for mode in Mode)} (default: cloud,sd,fsd,full)")  # fmt: skip
    line.add_argument("--rtt-ms", type=milliseconds, default=[0.0], metavar="MS[,MS]",
                      help="round trips to declare on top of the profile's own (default: 0)")  # fmt: skip
    line.add_argument("--profile", default="raw", help="device profile whose times are waited for (default: raw)")
    add_link(line)
    line.add_argument("--target-model", type=Path, default=PROJECT / "models" / "target")
    line.add_argument("--draft-model", type=Path, default=PROJECT / "models" / "draft")
    line.add_argument("--exits", type=Path, help="folder of exit heads (default: where the verifier finds them)")
    line.add_argument("--verifier", default="", metavar="ADDRESS", help="a running one; default: a process of its own")
    line.add_argument("--keys", default="", help="folder of CURVE keys for --verifier")
    line.add_argument("--allow-plain", action="store_true", help="trust a --verifier elsewhere without keys")
    line.add_argument("--topic", default="", help="camera topic (default: the bag's only one)")
    line.add_argument("--instruction", default="", help="what is asked (default: what the bag says)")
    line.add_argument("--anew", action="store_true", help="put the instruction even where the bag has what was asked")
    add_prompt_options(line)
    line.add_argument("--skip", type=int, default=0, help="frames to pass over at the start of each bag")
    line.add_argument("--fps", type=float, default=0.0, help="at most so many frames per second of the bag; 0: all")
    line.add_argument("--limit", type=int, default=0, help="at most so many frames of each bag; 0: all")
    add_drafting(line)
    add_predictor(line)
    line.add_argument("--max-tokens", type=int, default=128)
    line.add_argument("--dtype", default="float32", choices=list(DTYPES))
    line.add_argument("--check", action="store_true", help="also let the target answer alone and compare with that")
    line.add_argument("--restart", action="store_true", help="throw away what --out holds")
    line.add_argument("--out", type=Path, default=PROJECT / "out" / "replay", help="folder for results and report")
    line.set_defaults(run=run)
