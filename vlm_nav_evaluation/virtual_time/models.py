"""Draft model, predictor and target engine that look their outputs up in a recording and take their declared time.

The policies see what they see in production: rows of logits, verdicts layer by layer. Nothing is decided here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import NamedTuple

import numpy as np

from cloud_verifier.interfaces import LayerVerdicts, ModelInfo, Row
from cloud_verifier.server_draft.tree_growth import Growth, Proposals
from cloud_verifier.tree import Tree
from speculation.acceptance import Verdict
from speculation.cancellation import Abandoned, Stop
from speculation.distributions import Distributions, Logits
from speculation.pass_cost import Load
from speculation.wire import ROOT, Jpegs
from vlm_nav_evaluation.virtual_time.recording import RecordedStep, Recording
from vlm_nav_evaluation.virtual_time.timings import Timings

Sleep = Callable[[float], None]
FINGERPRINT = "model"
DRAFT_LAYERS = 28
"""How often a draft forward checks whether it should be given up: Qwen2-VL-2B has so many layers."""
_TAG = -60.0
"""Logit below which a row's last column keeps the place that the row is about: e^-60 is nothing to a softmax."""
LEAST = 1e-12
_LEAST_PROMPT = 2
"""Tokens of a prompt whose length is not declared: one that its prefill feeds, and the root."""
_TRUE_PATH = 0
"""The key of a prefix of the answer; a prefix that has left it has its hash."""


@dataclass(frozen=True)
class _Prefix:
    """`place` tokens of the answer, or of something else where `key` is not 0."""

    place: int
    key: int

    def then(self, token: int, tokens: Sequence[int]) -> _Prefix:
        """Return the prefix one token on; `tokens` is the answer."""
        stays = self.on_path(tokens) and tokens[self.place] == token
        return _Prefix(self.place + 1, _TRUE_PATH if stays else _mix(self.key, token, self.place))

    def on_path(self, tokens: Sequence[int]) -> bool:
        """Return whether something is recorded about the next token."""
        return self.key == _TRUE_PATH and self.place < len(tokens)


_START = _Prefix(0, _TRUE_PATH)


def _after(step: RecordedStep, committed: Sequence[int]) -> _Prefix:
    prefix = _START
    for token in committed:
        prefix = prefix.then(token, step.tokens)
    return prefix


def _mix(key: int, token: int, place: int) -> int:
    """Return a number above 0 that depends on all three, equal in every run."""
    number = (key * 0x9E3779B97F4A7C15 + token * 0xC2B2AE3D27D4EB4F + place * 0x165667B19E3779F9) & (2**64 - 1)
    number ^= number >> 29
    return number * 0xBF58476D1CE4E5B9 % (2**61 - 1) or 1


def _noise(prefix: _Prefix, salt: int, recording: Recording) -> int:
    """Return a token, never an end token, for a place about which nothing is known."""
    token = _mix(prefix.key, salt, prefix.place) % recording.vocabulary
    while token in recording.eos:
        token = (token + 1) % recording.vocabulary
    return token


def noises(prefix: _Prefix, count: int, recording: Recording) -> list[int]:
    """Return so many different ones."""
    found: dict[int, None] = {}
    for salt in itertools.count():
        found[_noise(prefix, salt, recording)] = None
        if len(found) == count:
            break
    return list(found)


class _Node(NamedTuple):
    """A drafted token that the draft model was fed, and the prefix that ends with it."""

    prefix: _Prefix
    token: int
    parent: int


class RecordedDraftModel:
    """A `DraftModel`, and its predictor, whose rows of logits name their place in their last column.

    Counts nodes and forwards exactly as `speculation.vlm.session.VlmSession` does. wait_for_message: waits for a
    message, at most so many seconds, and returns how many it took; without it `stop` is called at the end of every
    layer.
    """

    def __init__(
        self,
        recording: Recording,
        timings: Timings,
        sleep: Sleep,
        wait_for_message: Callable[[float], float] = lambda seconds: 0.0,
    ) -> None:
        self._recording = recording
        self._timings = timings
        self._sleep = sleep
        self._wait_for_message = wait_for_message
        self._step = recording.steps[0]
        self._rows, self._rest = _rows(self._step, recording.vocabulary)
        self.busy_s = 0.0
        """Declared seconds of all forwards so far, prefills among them."""
        self._root, self._pending = _START, 0
        self._nodes: list[_Node] = []

    def begin(self, prompt: str, image: Jpegs, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        self._spend(self._timings.edge_prefill_s, stop)
        step = self._recording.of_image(image)
        if step is not self._step:
            self._step = step
            self._rows, self._rest = _rows(step, self._recording.vocabulary)
        self._root, self._pending, self._nodes = _after(step, committed), 1 + len(committed), []

    def chance(self, logits: Logits, depth: int) -> float:
        acceptance = self._step.acceptance
        return float(acceptance[round(_TAG - float(logits[-1])), min(depth, acceptance.shape[1]) - 1])

    def chances(self, rows: Distributions, depths: Sequence[int]) -> list[float]:
        return [self.chance(row, depth) for row, depth in zip(rows.logits, depths, strict=True)]

    def root_logits(self, stop: Stop | None = None) -> Logits:
        if self._pending:
            self._forward(0, stop)
        return self._row(ROOT)

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        self._forward(len(tokens), stop)
        first = len(self._nodes)
        for token, parent in zip(tokens, parents, strict=True):
            self._nodes.append(_Node(self._prefix(parent).then(token, self._step.tokens), token, parent))
        rows = [self._row(node) for node in range(first, len(self._nodes))]
        return rows[0][None] if len(rows) == 1 else np.stack(rows)

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        end = path[-1] if path else ROOT
        fed, self._root = self._nodes, self._prefix(end).then(next_token, self._step.tokens)
        root = next((n for n, (_, token, parent) in enumerate(fed) if parent == end and token == next_token), None)
        self._nodes = []
        if root is None:
            self._pending += 1
            return {}
        renamed = {root: ROOT}
        for place in range(root + 1, len(fed)):
            if (parent := fed[place].parent) in renamed:
                renamed[place] = len(self._nodes)
                self._nodes.append(fed[place]._replace(parent=renamed[parent]))
        return renamed

    def _forward(self, tokens: int, stop: Stop | None) -> None:
        self._spend(self._timings.draft_forward_s(tokens + self._pending), stop)
        self._pending = 0

    def _spend(self, seconds: float, stop: Stop | None) -> None:
        """Let the time pass; call `stop` at the end of every layer in which a message came, and at the end."""
        passed, done = 0.0, 0
        if stop is None:
            self._sleep(seconds)
            self.busy_s += seconds
        while stop is not None and done < DRAFT_LAYERS and passed < seconds:
            before = passed
            passed += self._wait_for_message(seconds - passed)
            # One layer at least: a time below the clock's resolution rounds to nothing.
            done = max(done, math.floor(DRAFT_LAYERS * (passed / seconds))) + 1
            end = min(seconds, done * (seconds / DRAFT_LAYERS))
            self._sleep(end - passed)
            self.busy_s += max(passed, end) - before
            passed = max(passed, end)
            if stop():
                raise Abandoned

    def _prefix(self, node: int) -> _Prefix:
        return self._root if node == ROOT else self._nodes[node].prefix

    def _row(self, node: int) -> Logits:
        """Return the logits after a node or the root."""
        step, prefix = self._step, self._prefix(node)
        place = min(prefix.place, len(step.tokens) - 1)
        row: Logits = self._rows[place]
        if prefix.on_path(step.tokens):
            return row
        likely, known = step.draft_tokens[place], row[step.draft_tokens[place]]
        row = row.copy()
        row[likely] = self._rest[place]
        row[noises(prefix, len(known), self._recording)] = known
        return row


def _rows(step: RecordedStep, vocabulary: int) -> tuple[Logits, Logits]:
    """Return logits [n, vocabulary + 1] whose softmax has the draft's probabilities, and those of all other tokens [n].

    What the recorded tokens leave is spread evenly over the others. The last column is no token: it names the place
    that the row is about.
    """
    n, known = step.draft_tokens.shape
    probabilities = np.maximum(step.draft_probabilities.astype(np.float64), LEAST)
    rest = np.log(np.maximum(1.0 - probabilities.sum(axis=1), LEAST) / max(1, vocabulary - known))
    rows = np.repeat(rest[:, None], vocabulary + 1, axis=1)
    np.put_along_axis(rows, step.draft_tokens.astype(np.intp), np.log(probabilities), axis=1)
    rows[:, -1] = _TAG - np.arange(n)
    return rows, rest


@dataclass
class _Session:
    """An engine row: a recorded step and how far its answer is committed."""

    step: RecordedStep
    root: _Prefix
    prefill: int
    """Tokens that its prefill feeds."""
    agrees: list[list[bool]] | None
    confidences: list[list[float]] | None


class RecordedEngine:
    """A `cloud_verifier.interfaces.Engine`: the target and its exits."""

    def __init__(self, recording: Recording, timings: Timings, sleep: Sleep) -> None:
        self._recording = recording
        self._timings = timings
        self._sleep = sleep
        self._prompt = timings.prompt_tokens or _LEAST_PROMPT
        self._ends = tuple((layer + 1) / recording.layers for layer in range(recording.layers))
        self._at_once = (0.0,) * (recording.layers - 1) + (1.0,)
        self._exit_index = {layer: index for index, layer in enumerate(recording.exit_layers)}
        self._sessions: dict[int, _Session] = {}
        self._model = ModelInfo(
            FINGERPRINT, FINGERPRINT, FINGERPRINT, recording.vocabulary + 1, recording.layers, recording.exit_layers,
            recording.eos, reliability=recording.reliability,
        )  # fmt: skip

    @property
    def model(self) -> ModelInfo:
        return self._model

    def prepare(self, prompt: str, jpeg: Jpegs) -> Jpegs:
        """It takes no time of its own: `cloud_prefill_s` holds all of it."""
        return jpeg

    @property
    def blocks(self) -> int:
        """Memory is no limit here."""
        return 1 << 30

    def size(self, inputs: Jpegs) -> int:
        return max(1, self._prompt)

    def image_tokens(self, inputs: Jpegs) -> int:
        """How large the image is was not recorded."""
        return 1

    def release(self, index: int) -> None:
        self._sessions.pop(index, None)

    def begin(self, index: int, inputs: Jpegs, committed: Sequence[int], max_tokens: int, features: int = 0) -> int:
        """No row shares anything."""
        step = self._recording.of_image(inputs)
        lists = (None if array is None else array.tolist() for array in (step.agrees, step.confidences))
        tokens = max(0, self._prompt - 1 + len(committed))
        self._sessions[index] = _Session(step, _after(step, committed), tokens, *lists)
        return tokens

    def encode(self, index: int, stop: Stop | None = None) -> None:
        """It takes what is left of `cloud_prefill_s` beside the chunks; all where there are none.

        Without a measured profile the chunks take all of it.
        """
        tokens, cost = self._sessions[index].prefill, self._timings.pass_cost
        if not tokens or not self._timings.prompt_tokens:
            self._sleep(self._timings.cloud_prefill_s)
        elif cost is not None:
            self._sleep(self._timings.cloud_prefill_s - cost.seconds(Load.row(tokens)))

    def verify(self, rows: Sequence[Row]) -> Iterator[LayerVerdicts]:
        """A forward of chunks alone is one sleep: nothing leaves it between its layers."""
        judged = [row for row in rows if row.judged]
        whole = self._forward_s(rows)
        with_exits = [row for row in judged if row.exits]
        final = {row.index: self._final_verdict(row) for row in judged}
        done = 0.0
        for layer, end in enumerate(self._ends if judged else self._at_once):
            index = self._exit_index.get(layer) if with_exits else None
            self._sleep(whole * (end - done) + (self._timings.exit_s if index is not None else 0.0))
            done = end
            last = layer == len(self._ends) - 1
            asked = [] if index is None or last else [(row, index) for row in with_exits]
            early = {row.index: self._exit_verdict(row, layer, place, final[row.index]) for row, place in asked}
            verdicts = final if last else {n: each for n, each in early.items() if each is not None}
            yield LayerVerdicts(layer, verdicts)

    def _forward_s(self, rows: Sequence[Row]) -> float:
        if not self._timings.prompt_tokens:  # `encode` took all that was declared
            rows = [row for row in rows if not row.chunk]
            if not rows:
                return 0.0
        if self._timings.cost is not None:
            return self._timings.target_forward_s(Load.total(row.load for row in rows))
        chunks = sum(row.load.new / self._sessions[row.index].prefill for row in rows if row.chunk)
        load = Load.total(row.load for row in rows if not row.chunk)
        return (self._timings.target_forward_s(load) if load.rows else 0.0) + self._timings.cloud_prefill_s * chunks

    def keep(self, index: int, path: Sequence[int], token: int) -> None:
        """Only verdicts are kept, so the row goes on along the answer."""
        session = self._sessions[index]
        session.root = _Prefix(session.root.place + len(path) + 1, _TRUE_PATH)

    def _final_verdict(self, row: Row) -> Verdict:
        """Return the target's verdict: `speculation.sampling.Greedy` on what the target predicts."""
        session = self._sessions[row.index]
        tokens = session.step.tokens

        def predict(prefix: _Prefix) -> tuple[int, float]:
            return (tokens[prefix.place] if prefix.on_path(tokens) else _noise(prefix, 0, self._recording)), 1.0

        return _walk(row, session, predict)

    def _exit_verdict(self, row: Row, layer: int, index: int, final: Verdict) -> Verdict | None:
        """Return an exit's verdict; None where it gives none, as in `speculation.exits.ExitHeads.judge`."""
        session = self._sessions[row.index]
        step = session.step
        if session.agrees is not None and session.confidences is not None:
            place = min(session.root.place, len(step.tokens) - 1)
            confidence = session.confidences[place][index]
            if session.agrees[place][index]:
                return Verdict(final.path, final.token, confidence)
            return Verdict(final.path, self._wrong(row, session, final), confidence)
        assert step.exit_tokens is not None and step.exit_probabilities is not None, "a step has exits of one kind"
        exit_tokens, exit_probabilities = step.exit_tokens, step.exit_probabilities

        def predict(prefix: _Prefix) -> tuple[int, float]:
            place = min(prefix.place, len(step.tokens) - 1)
            known = prefix.on_path(step.tokens)
            token = int(exit_tokens[place, index]) if known else _noise(prefix, layer, self._recording)
            return token, float(exit_probabilities[place, index])

        verdict = _walk(row, session, predict, max if self._recording.by_highest else mul)
        short = self._recording.short_list
        return verdict if short is None or short.issuperset(_children(row, verdict)) else None

    def _wrong(self, row: Row, session: _Session, final: Verdict) -> int:
        """Return a token that is neither the target's nor the draft's after the accepted path."""
        taken = {final.token, *_children(row, final)}
        place = _Prefix(session.root.place + len(final.path), 1)
        noise = (_noise(place, salt, self._recording) for salt in itertools.count())
        return next(token for token in noise if token not in taken)


def _children(row: Row, verdict: Verdict) -> list[int]:
    """Return the draft's tokens after the accepted path."""
    end = verdict.path[-1] if verdict.path else ROOT
    return [token for token, parent in zip(row.tokens, row.parents, strict=True) if parent == end]


def _walk(
    row: Row,
    session: _Session,
    predict: Callable[[_Prefix], tuple[int, float]],
    joined: Callable[[float, float], float] = mul,
) -> Verdict:
    """Walk from the root to the child that `predict` names until there is none; of equal siblings the first counts.

    joined: makes one confidence of those of the tokens on the way.
    """
    children: dict[tuple[int, int], int] = {}
    for child, (token, parent) in enumerate(zip(row.tokens, row.parents, strict=True)):
        children.setdefault((parent, token), child)
    path: list[int] = []
    node, prefix = ROOT, session.root
    confidence: float | None = None
    while True:
        token, probability = predict(prefix)
        confidence = probability if confidence is None else joined(confidence, probability)
        if (node, token) not in children:
            return Verdict(tuple(path), token, confidence)
        node = children[node, token]
        path.append(node)
        prefix = prefix.then(token, session.step.tokens)


class RecordedServerDraft:
    """A `cloud_verifier.interfaces.DraftEngine`: the recorded draft beside the target, one forward for all steps of a
    batch (mode server_sd). Its trees hold recorded tokens only."""

    def __init__(self, recording: Recording, timings: Timings, sleep: Sleep) -> None:
        self._recording = recording
        self._timings = timings
        self._sleep = sleep
        self._steps: dict[int, RecordedStep] = {}
        self._prompt = max(1, timings.prompt_tokens - 1)

    @property
    def name(self) -> str:
        return FINGERPRINT

    def prepare(self, prompt: str, jpeg: Jpegs) -> Jpegs:
        return jpeg

    def size(self, inputs: Jpegs) -> int:
        return max(1, self._timings.prompt_tokens)

    def release(self, index: int) -> None:
        """A row's model is used again."""

    def image_tokens(self, inputs: Jpegs) -> int:
        """A recorded prefill is one figure, which the chunks take."""
        return 0

    def begin(self, index: int, inputs: Jpegs, max_tokens: int) -> int:
        self._steps[index] = self._recording.of_image(inputs)
        return self._prompt

    def encode(self, index: int, stop: Stop | None = None) -> None:
        """There is nothing to encode."""

    def feed(self, index: int, tokens: int, stop: Stop | None = None) -> None:
        self._sleep(self._timings.server_draft_prefill_s * tokens / self._prompt)

    def draft(self, rows: Sequence[Row]) -> Iterator[Mapping[int, Tree]]:
        growths = {row.index: Growth(row.self_draft, row.self_depth, self._recording.eos) for row in rows}
        prefixes = {row.index: {ROOT: _after(self._steps[row.index], row.answer)} for row in rows}
        growing = dict(growths)
        while growing:
            self._sleep(self._timings.server_draft_s)
            for index, growth in list(growing.items()):
                step, known = self._steps[index], prefixes[index]
                for leaf in growth.leaves:
                    if leaf != ROOT:
                        known[leaf] = known[growth[leaf].parent].then(growth[leaf].token, step.tokens)
                growth.grow([_proposals(step, known[leaf], self._recording) for leaf in growth.leaves])
                if not growth.leaves:
                    del growing[index]
            yield {index: growth.tree for index, growth in growths.items()}


def _proposals(step: RecordedStep, prefix: _Prefix, recording: Recording) -> Proposals:
    """Return what the draft expects after a prefix, likeliest first, of the tokens that were recorded."""
    place = min(prefix.place, len(step.tokens) - 1)
    tokens: list[int] = step.draft_tokens[place].tolist()
    if not prefix.on_path(step.tokens):
        tokens = noises(prefix, len(tokens), recording)
    chances = np.maximum(step.draft_probabilities[place].astype(np.float64), LEAST)
    return list(zip(tokens, np.log(chances).tolist(), strict=True))
