"""Draft model, predictor and target engine that read their answers off facts and take their declared time.

The policies see what they see in production: rows of logits, verdicts layer by layer. Nothing is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.clocked.facts import Facts, Recording
from benchmarks.clocked.timings import Timings
from cloud_verifier.work import LayerVerdicts, ModelInfo, Row
from speculation.acceptance import Verdict
from speculation.cancellation import Abandoned, Stop
from speculation.distributions import Distributions, Logits
from speculation.wire import ROOT

Sleep = Callable[[float], None]
FINGERPRINT = "facts"
DRAFT_LAYERS = 28
"""How often a draft forward asks whether it should be given up: Qwen2-VL-2B has so many layers."""
_TAG = -60.0
"""Logit below which a row's last column keeps the place that the row is about: e^-60 is nothing to a softmax."""
_LEAST = 1e-12
_WRONGS = 1 << 16
"""Salts between two wrong verdicts of one place."""
_TRUE_PATH = 0
"""The key of a prefix of the answer; a prefix that has left it has its hash."""


@dataclass(frozen=True)
class _Prefix:
    """`place` tokens of the answer, or of something else where `key` is not 0."""

    place: int
    key: int

    def then(self, token: int, tokens: Sequence[int]) -> _Prefix:
        on_path = self.key == _TRUE_PATH and self.place < len(tokens) and tokens[self.place] == token
        return _Prefix(self.place + 1, _TRUE_PATH if on_path else _mix(self.key, token, self.place))


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


class FactsPredictor:
    """The acceptance predictor's answers, recorded; rows are known by the place that their last column names."""

    def __init__(self) -> None:
        self.facts: Facts | None = None

    def chance(self, logits: Logits, depth: int) -> float:
        """See `Predictor.chance`."""
        assert self.facts is not None, "the draft model begins a step before it has logits"
        chances = self.facts.chances
        return float(chances[round(_TAG - float(logits[-1])), min(depth, chances.shape[1]) - 1])

    def chances(self, rows: Distributions, depths: Sequence[int]) -> list[float]:
        """See `Predictor.chances`."""
        return [self.chance(row, depth) for row, depth in zip(rows.logits, depths, strict=True)]


class FactsDraftModel:
    """A `DraftModel`; counts nodes and forwards exactly as `speculation.vlm.session.VlmSession` does.

    listen: waits for mail, at most so many seconds, and returns how many it took; without it `stop` is asked at the end
    of every layer.
    """

    def __init__(
        self,
        recording: Recording,
        timings: Timings,
        sleep: Sleep,
        listen: Callable[[float], float] = lambda seconds: 0.0,
    ) -> None:
        self._recording = recording
        self._timings = timings
        self._sleep = sleep
        self._listen = listen
        self.predictor = FactsPredictor()
        self._facts = recording.steps[0]
        self._rows: Logits = np.empty((0, 0))
        self._rest: Logits = np.empty(0)
        self._root = _Prefix(0, _TRUE_PATH)
        self._pending = 0
        self._nodes: list[_Prefix] = []
        self._tokens: list[int] = []
        self._parents: list[int] = []

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = ()) -> None:
        """See `DraftModel.begin`."""
        self._sleep(self._timings.edge_prefill_s)
        facts = self._recording.of_image(image)
        if facts is not self.predictor.facts:
            self._facts = self.predictor.facts = facts
            self._rows, self._rest = _rows(facts, self._recording.vocabulary)
        self._root = _Prefix(0, _TRUE_PATH)
        for token in committed:
            self._root = self._root.then(token, facts.tokens)
        self._pending = 1 + len(committed)
        self._forget_nodes()

    def root_logits(self, stop: Stop | None = None) -> Logits:
        """See `DraftModel.root_logits`."""
        if self._pending:
            self._forward(0, stop)
        return self._row(self._root)

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        """See `DraftModel.extend`."""
        self._forward(len(tokens), stop)
        first = len(self._nodes)
        for token, parent in zip(tokens, parents, strict=True):
            before = self._root if parent == ROOT else self._nodes[parent]
            self._nodes.append(before.then(token, self._facts.tokens))
        self._tokens += tokens
        self._parents += parents
        rows = [self._row(node) for node in self._nodes[first:]]
        return rows[0][None] if len(rows) == 1 else np.stack(rows)

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        """See `DraftModel.commit`."""
        end = path[-1] if path else ROOT
        before = self._nodes[end] if path else self._root
        fed = zip(self._tokens, self._parents, strict=True)
        root = next((n for n, (token, parent) in enumerate(fed) if parent == end and token == next_token), None)
        self._root = before.then(next_token, self._facts.tokens)
        if root is None:
            self._pending += 1
            self._forget_nodes()
            return {}
        renamed = {root: ROOT}
        for node in range(root + 1, len(self._nodes)):
            if self._parents[node] in renamed:
                renamed[node] = len(renamed) - 1
        kept = [node for node in renamed if node != root]
        self._nodes = [self._nodes[node] for node in kept]
        self._tokens = [self._tokens[node] for node in kept]
        self._parents = [renamed[self._parents[node]] for node in kept]
        return renamed

    def _forward(self, tokens: int, stop: Stop | None) -> None:
        seconds = self._timings.draft_forward_s(tokens + self._pending)
        if stop is None or seconds <= 0.0:
            self._sleep(seconds)
        else:
            self._compute(seconds, stop)
        self._pending = 0

    def _compute(self, seconds: float, stop: Stop) -> None:
        """Let a forward's time pass, and ask `stop` at the end of every layer in which a message came, and at last."""
        done, passed = 0, 0.0
        while done < DRAFT_LAYERS and passed < seconds:
            passed += self._listen(seconds - passed)
            # One layer at least: times below a clock's resolution round to nothing.
            done = max(done, math.floor(DRAFT_LAYERS * (passed / seconds))) + 1
            end = min(seconds, done * (seconds / DRAFT_LAYERS))
            self._sleep(end - passed)
            passed = max(passed, end)
            if stop():
                raise Abandoned

    def _forget_nodes(self) -> None:
        self._nodes, self._tokens, self._parents = [], [], []

    def _row(self, prefix: _Prefix) -> Logits:
        facts = self._facts
        place = min(prefix.place, len(facts.tokens) - 1)
        row: Logits = self._rows[place]
        if prefix.key == _TRUE_PATH and place == prefix.place:
            return row
        said = row[facts.draft_tokens[place]]
        row = row.copy()
        row[facts.draft_tokens[place]] = self._rest[place]
        row[self._noises(prefix, len(said))] = said
        return row

    def _noises(self, prefix: _Prefix, count: int) -> list[int]:
        """Return so many different tokens for a place about which nothing is known."""
        found: dict[int, None] = {}
        salt = 0
        while len(found) < count:
            found[_noise(prefix, salt, self._recording)] = None
            salt += 1
        return list(found)


def _rows(facts: Facts, vocabulary: int) -> tuple[Logits, Logits]:
    """Return logits [n, vocabulary + 1] whose softmax has the draft's probabilities, and those of all other tokens [n].

    What the recorded tokens leave is spread evenly over the others. The last column is no token: it names the place
    that the row is about.
    """
    n, known = facts.draft_tokens.shape
    chances = np.maximum(facts.draft_chances.astype(np.float64), _LEAST)
    rest = np.log(np.maximum(1.0 - chances.sum(axis=1), _LEAST) / max(1, vocabulary - known))
    rows = np.repeat(rest[:, None], vocabulary + 1, axis=1)
    np.put_along_axis(rows, facts.draft_tokens.astype(np.intp), np.log(chances), axis=1)
    rows[:, -1] = _TAG - np.arange(n)
    return rows, rest


@dataclass
class _Session:
    """An engine row: a step's facts and how far its answer is committed."""

    facts: Facts
    root: _Prefix
    agrees: list[list[bool]] | None = None
    confidences: list[list[float]] | None = None


class FactsEngine:
    """A `cloud_verifier.work.Engine`: the target and its exits."""

    def __init__(self, recording: Recording, timings: Timings, sleep: Sleep) -> None:
        self._recording = recording
        self._timings = timings
        self._sleep = sleep
        self._ends = timings.layer_ends(recording.layers)
        self._exit_index = {layer: index for index, layer in enumerate(recording.exit_layers)}
        self._sessions: dict[int, _Session] = {}
        self._model = ModelInfo(
            FINGERPRINT, FINGERPRINT, FINGERPRINT, recording.vocabulary + 1, recording.layers, recording.exit_layers,
            recording.eos, reliability=recording.reliability,
        )  # fmt: skip

    @property
    def model(self) -> ModelInfo:
        """See `Engine.model`."""
        return self._model

    def prepare(self, prompt: str, jpeg: bytes) -> bytes:
        """See `Engine.prepare`. It takes no time of its own: `cloud_prefill_s` holds all of it."""
        return jpeg

    def prefill(self, index: int, inputs: bytes, committed: Sequence[int], max_tokens: int) -> None:
        """See `Engine.prefill`."""
        self._sleep(self._timings.cloud_prefill_s)
        facts = self._recording.of_image(inputs)
        root = _Prefix(0, _TRUE_PATH)
        for token in committed:
            root = root.then(token, facts.tokens)
        self._sessions[index] = session = _Session(facts, root)
        if facts.agrees is not None and facts.confidences is not None:
            session.agrees, session.confidences = facts.agrees.tolist(), facts.confidences.tolist()

    def verify(self, rows: Sequence[Row]) -> Iterator[LayerVerdicts]:
        """See `Engine.verify`."""
        whole = self._timings.target_forward_s(len(rows), sum(1 + len(row.tokens) for row in rows))
        asking = [row for row in rows if row.exits]
        final = {row.index: self._judge(row) for row in rows}
        done = 0.0
        for layer, end in enumerate(self._ends):
            index = self._exit_index.get(layer) if asking else None
            self._sleep(whole * (end - done) + (self._timings.exit_s if index is not None else 0.0))
            done = end
            verdicts: dict[int, Verdict] = {}
            if layer == len(self._ends) - 1:
                verdicts = final
            elif index is not None:
                for row in asking:
                    rumour = self._rumour(row, layer, index, final[row.index])
                    if rumour is not None:
                        verdicts[row.index] = rumour
            yield LayerVerdicts(layer, verdicts)

    def keep(self, index: int, path: Sequence[int], token: int) -> None:
        """See `Engine.keep`. Only verdicts are kept, so the row goes on along the answer."""
        session = self._sessions[index]
        session.root = _Prefix(session.root.place + len(path) + 1, _TRUE_PATH)

    def _judge(self, row: Row) -> Verdict:
        """Return the target's verdict: `speculation.acceptance.Greedy` on what the target says."""
        session = self._sessions[row.index]
        tokens = session.facts.tokens

        def said(prefix: _Prefix) -> tuple[int, float]:
            known = prefix.key == _TRUE_PATH and prefix.place < len(tokens)
            return (tokens[prefix.place] if known else _noise(prefix, 0, self._recording)), 1.0

        return _walk(row, session, said)

    def _rumour(self, row: Row, layer: int, index: int, final: Verdict) -> Verdict | None:
        """Return an exit's verdict; None where it is silent, as in `speculation.exits.ExitHeads.judge`."""
        session = self._sessions[row.index]
        facts = session.facts
        if session.agrees is not None and session.confidences is not None:
            place = min(session.root.place, len(facts.tokens) - 1)
            confidence = session.confidences[place][index]
            if session.agrees[place][index]:
                return Verdict(final.path, final.token, confidence)
            nth = 0 if facts.wrongs is None else int(facts.wrongs[place, index])
            return Verdict(final.path, self._wrong(row, session, final, nth), confidence)
        assert facts.exit_tokens is not None and facts.exit_chances is not None, "facts have exits of one kind"
        exit_tokens, exit_chances = facts.exit_tokens, facts.exit_chances

        def said(prefix: _Prefix) -> tuple[int, float]:
            place = min(prefix.place, len(facts.tokens) - 1)
            known = prefix.key == _TRUE_PATH and place == prefix.place
            token = int(exit_tokens[place, index]) if known else _noise(prefix, layer, self._recording)
            return token, float(exit_chances[place, index])

        verdict = _walk(row, session, said)
        end = verdict.path[-1] if verdict.path else ROOT
        short = self._recording.short_list
        children = (token for token, parent in zip(row.tokens, row.parents, strict=True) if parent == end)
        if short is not None and any(token not in short for token in children):
            return None
        return verdict

    def _wrong(self, row: Row, session: _Session, final: Verdict, nth: int) -> int:
        """Return the nth token that is neither the target's nor the draft's after the accepted path."""
        end = final.path[-1] if final.path else ROOT
        taken = {token for token, parent in zip(row.tokens, row.parents, strict=True) if parent == end}
        place = session.root.place + len(final.path)
        salt = nth * _WRONGS
        while True:
            token = _noise(_Prefix(place, 1), salt, self._recording)
            if token != final.token and token not in taken:
                return token
            salt += 1


def _walk(row: Row, session: _Session, said: Callable[[_Prefix], tuple[int, float]]) -> Verdict:
    """Walk from the root to the child that `said` names until there is none; of equal siblings the first counts."""
    children: dict[tuple[int, int], int] = {}
    for child, (token, parent) in enumerate(zip(row.tokens, row.parents, strict=True)):
        children.setdefault((parent, token), child)
    path: list[int] = []
    node, confidence, prefix = ROOT, 1.0, session.root
    while True:
        token, chance = said(prefix)
        confidence *= chance
        child_or_none = children.get((node, token))
        if child_or_none is None:
            return Verdict(tuple(path), token, confidence)
        node = child_or_none
        path.append(node)
        prefix = prefix.then(token, session.facts.tokens)
