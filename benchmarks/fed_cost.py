"""What a fed head costs: its forwards beside the draft model's, and the bytes of its features on links.

Costs depend on sizes alone, so the head's weights are random. Its forwards are those of a tree, `--leaves` tokens
behind as many; a commit of gamma + 1 tokens is followed by the target's features for all of them and by a forward over
the root. Bytes are those of encoded messages: with features less without.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from adapters_training.exit_choice.report import machine
from benchmarks.shapes import SHAPES, add_forwards, check_machine
from spec_vlm_nav.graph import PROJECT
from speculation.features import MAX_SIZE, pack
from speculation.fed.config import FedConfig
from speculation.fed.head import FedHead
from speculation.fed.session import FedSession
from speculation.vlm.load import DTYPES, load_vlm
from speculation.vlm.session import VlmSession
from speculation.wire import ROOT, Commit, Features, encode
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.figures import spread
from vlm_nav_evaluation.tables import Column, figures_table, spread_columns

PROMPT = "find the silver bottle"
WARM_UP = 3
DIGEST = bytes(8)


def random_features(count: int, size: int) -> bytes:
    """Return packed features of so many tokens."""
    return pack(np.random.default_rng(count).normal(size=(count, size)).astype(np.float32))


def begun(head: FedHead, answer: int) -> FedSession:
    """Return a session behind a prompt's end and an answer of so many tokens, all fed by the target."""
    config = head.config
    session = FedSession(head)
    tokens = [place % config.vocabulary for place in range(config.prompt_tokens + answer)]
    session.begin(PROMPT, b"", tokens[config.prompt_tokens :])
    session.feed(tokens, answer, random_features(len(tokens), config.size))
    session.root_logits()
    return session


def timed(work: Callable[[], None], repeats: int, alone: bool) -> dict[str, float]:
    """Return the spread of a piece of work's seconds: `alone`, of the processor's time, else of the wall's.

    Each ends with logits on the host, so that a device is waited for.
    """
    seconds = []
    for _ in range(WARM_UP + repeats):
        started = _now(alone)
        work()
        seconds.append(_now(alone) - started)
    return spread(seconds[WARM_UP:])


def head_costs(head: FedHead, options: argparse.Namespace, alone: bool) -> dict[str, dict[str, Any]]:
    """Return the seconds of forwards over each number of leaves, and of a commit."""
    rows: dict[str, dict[str, Any]] = {}
    for leaves in options.leaves:
        session = begun(head, options.answer)
        session.extend([0] * leaves, [ROOT] * leaves)
        rows[f"fed head, leaves: {leaves}"] = {"s": timed(_growing(session, leaves), options.repeats, alone)}
    session, count = begun(head, options.answer), options.gamma + 1
    end, seconds = options.answer, list[float]()
    tokens = list(range(count))
    for _ in range(WARM_UP + options.repeats):
        session.extend(tokens[:-1], list(range(ROOT, count - 2)))
        features, end = random_features(count, head.config.size), end + count
        started = _now(alone)
        session.commit(list(range(count - 1)), tokens[-1])
        session.feed(tokens, end, features)
        session.root_logits()
        seconds.append(_now(alone) - started)
    rows[f"fed head, a commit of {count} tokens and its root"] = {"s": spread(seconds[WARM_UP:])}
    return rows


def _now(alone: bool) -> float:
    return time.process_time() if alone else time.perf_counter()


def _growing(session: FedSession | VlmSession, leaves: int) -> Callable[[], None]:
    """Return what feeds as many tokens behind the nodes fed last, each behind its own."""
    nodes = [0]

    def grow() -> None:
        session.extend([0] * leaves, list(range(nodes[0], nodes[0] + leaves)))
        nodes[0] += leaves

    return grow


def draft_costs(folder: Path, options: argparse.Namespace, alone: bool) -> dict[str, dict[str, Any]]:
    """Return the same of a draft model behind its prompt, and the seconds of its prefill with a frame."""
    vlm = load_vlm(folder, device=options.device, dtype=options.dtype, threads=options.threads)
    room = 1024 + 2 * max(options.leaves) * (WARM_UP + options.repeats + 1)
    session, frame = VlmSession(vlm, min(room, vlm.context)), np.zeros((224, 224, 3), dtype=np.uint8)
    image = frame if vlm.sees_images else None
    rows: dict[str, dict[str, Any]] = {}
    for leaves in options.leaves:
        session.begin(PROMPT, image)
        session.extend([0] * leaves, [ROOT] * leaves)
        work = _growing(session, leaves)
        rows[f"draft model, leaves: {leaves}"] = {"s": timed(work, options.repeats, alone)}

    def prefill() -> None:
        session.begin(PROMPT, image)
        session.root_logits()

    rows["draft model, prefill and its root"] = {"s": timed(prefill, max(1, options.repeats // 4), alone)}
    return rows


def wire_costs(config: FedConfig, answer: int, tau: int) -> dict[str, int]:
    """Return bytes of features: of a token, of the prompt's end, and of a step of so many tokens, `tau` a commit."""
    prompt = len(
        encode(Features(1, 0, [300] * config.prompt_tokens, random_features(config.prompt_tokens, config.size)))
    )
    commits = 0
    for start in range(0, answer, tau):
        tokens = [300] * min(tau, answer - start)
        plain = Commit(1, 1, start, tokens, DIGEST, False)
        fed = Commit(1, 1, start, tokens, DIGEST, False, features=random_features(len(tokens), config.size))
        commits += len(encode(fed)) - len(encode(plain))
    return {"token": len(random_features(1, config.size)), "prompt": prompt, "step": prompt + commits}


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.command_line("benchmarks.fed_cost", __doc__)
    line.add_argument("--draft-model", type=Path, default=PROJECT / "models" / "draft", help="it is compared with")
    line.add_argument(
        "--shape", choices=SHAPES, help="instead: a head of this checkpoint's width and vocabulary, alone"
    )
    line.add_argument("--width", type=int, help="of the head's layer (default: 160, or the shape's)")
    line.add_argument("--heads", type=int, help="attention heads (default: 4, or the shape's)")
    line.add_argument("--intermediate", type=int, help="feed-forward width (default: three times the width)")
    line.add_argument("--short-list", type=int, default=4096, help="tokens that it drafts, at most (default: 4096)")
    line.add_argument("--size", type=int, default=MAX_SIZE, help="numbers of a feature (default: %(default)s)")
    line.add_argument("--prompt-tokens", type=int, default=32, help="of the prompt's end (default: 32)")
    line.add_argument("--answer", type=int, default=60, help="tokens of an answer (default: 60)")
    line.add_argument("--leaves", type=int, nargs="+", default=[1, 8], help="tokens of a forward (default: 1 8)")
    line.add_argument("--mbits", type=float, nargs="+", default=[3.0, 30.0, 100.0], help="links (default: 3 30 100)")
    add_forwards(line, repeats=20, dtype="float32")
    return line


def shape_of(options: argparse.Namespace) -> FedConfig:
    """Return the head that the options name. Raises ValueError for sizes that do not fit together."""
    if options.shape is not None:
        shape = SHAPES[options.shape]
        vocabulary, width, heads = shape.tokens, shape.text["hidden_size"], shape.text["num_attention_heads"]
    else:
        vlm = load_vlm(options.draft_model, threads=options.threads)
        vocabulary, width, heads = vlm.vocabulary, 160, 4
    width, heads = options.width or width, options.heads or heads
    listed = np.linspace(0, vocabulary - 1, min(options.short_list, vocabulary)).astype(int).tolist()
    return FedConfig(
        target="random", tokenizer="random", vocabulary=vocabulary, layers=(0, 1, 2), hidden=width, size=options.size,
        prompt_tokens=options.prompt_tokens, width=width, heads=heads, intermediate=options.intermediate or 3 * width,
        short_list=tuple(listed),
    )  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError or RuntimeError, in one sentence, where it cannot."""
    if min(options.repeats, options.answer, options.gamma, *options.leaves) < 1 or min(options.mbits) <= 0.0:
        raise ValueError("--repeats, --answer, --gamma and --leaves must be at least 1, --mbits above 0")
    check_machine(options)
    config = shape_of(options)
    head = FedHead(config).requires_grad_(False).eval().to(device=options.device, dtype=DTYPES[options.dtype])
    alone = options.device == "cpu" and options.threads == 1
    rows = head_costs(head, options, alone)
    if options.shape is None:
        rows |= draft_costs(options.draft_model, options, alone)
    size = sum(weight.numel() for weight in head.parameters())
    print(
        f"random fed head of width {config.width}, {len(config.short_list)} of {config.vocabulary} tokens, "
        f"{size / 1e6:.2f} M weights, {options.dtype}; {'processor' if alone else 'wall'} time"
    )
    print(figures_table("forward", rows, spread_columns("s", form=".2f")))
    wire = wire_costs(config, options.answer, options.gamma + 1)
    links = {
        f"{rate:g} Mbit/s": {name: value * 8 / (rate * 1e6) for name, value in wire.items()} for rate in options.mbits
    }
    print(
        f"features: {wire['token']} bytes a token, {wire['prompt']} for the prompt's end, {wire['step']} for a step of "
        f"{options.answer} tokens, {options.gamma + 1} a commit"
    )
    columns = [Column(f"{name} ms", name, ".2f", 1e3) for name in ("token", "prompt", "step")]
    print(figures_table("link", links, columns))
    print(machine(options.device))
    if options.save:
        about = {"settings": command.settings_of(options), "machine": machine(options.device), "weights": size}
        name = f"fed_cost_{options.shape or options.draft_model.name}_{options.dtype}"
        command.write_result(name, {**about, "forwards": rows, "bytes": wire, "seconds": links})


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
