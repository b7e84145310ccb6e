"""A deterministic target without a model, and an engine around it: what is committed can be computed by hand."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cloud_verifier.interfaces import CapacityError, LayerVerdicts, ModelInfo, Row
from cloud_verifier.tree import Tree
from speculation.acceptance import Verdict
from speculation.cancellation import Stop
from speculation.wire import Jpegs, frames_of

EOS = 0
VOCABULARY = 6
"""Few tokens, so that random drafts are often right."""
LAYERS = 4
EXITS = (1, 2)


def next_token(prompt: str, jpeg: Jpegs, answer: Sequence[int]) -> int:
    """Return the fake target's next token; about one in twelve ends the answer, but none to a "long" prompt."""
    number = zlib.crc32(repr((prompt, jpeg, list(answer))).encode())
    return EOS if number % 12 == 0 and not prompt.startswith("long") else 1 + number // 12 % (VOCABULARY - 1)


def greedy(prompt: str, jpeg: Jpegs, max_tokens: int) -> list[int]:
    """Return the target's own answer."""
    answer: list[int] = []
    while len(answer) < max_tokens and (not answer or answer[-1] != EOS):
        answer.append(next_token(prompt, jpeg, answer))
    return answer


@dataclass
class FakeRow:
    prompt: str
    jpeg: bytes
    answer: list[int]
    left: int = 0
    """Tokens that its prefill still feeds."""
    encoded: bool = False


@dataclass
class FakeEngine:
    """Keeps rows as token lists. Exits agree with the target, but the first is wrong about every other token."""

    capacity: int = 600
    fail_on: str = ""
    """A prompt whose verification raises."""
    not_judged: str = ""
    """A prompt whose row cannot be judged; the others can."""
    memory: int = 10_000
    """Blocks."""
    words_alone: bool = False
    """Its inputs have no image, whatever frame came."""
    released: list[int] = field(default_factory=list)
    rows: dict[int, FakeRow] = field(default_factory=dict)
    batches: list[tuple[int, ...]] = field(default_factory=list)
    """Rows that were judged, by forward."""
    chunks: list[dict[int, int]] = field(default_factory=list)
    """Tokens of prefills that were fed, by row and forward."""

    @property
    def model(self) -> ModelInfo:
        return ModelInfo("fake", "f" * 16, "t" * 16, VOCABULARY, LAYERS, EXITS, (EOS,))

    def prepare(self, prompt: str, jpeg: Jpegs) -> tuple[str, Jpegs]:
        if not all(frame.startswith(b"jpeg") for frame in frames_of(jpeg)):
            raise ValueError("image does not decode")
        return prompt, jpeg

    @property
    def blocks(self) -> int:
        return self.memory

    def size(self, inputs: tuple[str, Jpegs]) -> int:
        return len(inputs[0])

    def image_tokens(self, inputs: tuple[str, Jpegs]) -> int:
        return 0 if self.words_alone else 1

    def release(self, index: int) -> None:
        self.rows.pop(index, None)
        self.released.append(index)

    def begin(
        self, index: int, inputs: tuple[str, Jpegs], committed: Sequence[int], max_tokens: int, features: int = 0
    ) -> int:
        if max_tokens > self.capacity:
            raise CapacityError(f"{max_tokens} tokens do not fit {self.capacity}")
        tokens = max(0, len(inputs[0]) - 1 + len(committed))
        self.rows[index] = FakeRow(*inputs, list(committed), tokens, encoded=self.words_alone)
        return tokens

    def encode(self, index: int, stop: Stop | None = None) -> None:
        assert not self.words_alone, "there is nothing to encode"
        self.rows[index].encoded = True

    def verify(self, rows: Sequence[Row]) -> Iterator[LayerVerdicts]:
        judged_rows = [row for row in rows if row.judged]
        if judged_rows:
            self.batches.append(tuple(row.index for row in judged_rows))
        self.chunks.append({row.index: row.chunk for row in rows if row.chunk})
        if any(self.rows[row.index].prompt == self.fail_on for row in rows):
            raise RuntimeError("out of memory")
        ready = all(self.rows[row.index].left == row.chunk for row in judged_rows)
        assert ready, "a row is judged before its prefill is done"
        fed = {row.index: row.chunk for row in rows if row.chunk}
        assert all(self.rows[index].encoded and n <= self.rows[index].left for index, n in fed.items())
        final = {row.index: self._judge(row) for row in judged_rows}
        for layer in range(LAYERS - 1):
            verdicts = {}
            if layer in EXITS:
                verdicts = {row.index: self._guess(layer, final[row.index]) for row in judged_rows if row.exits}
            yield LayerVerdicts(layer, verdicts)
        for index, tokens in fed.items():
            self.rows[index].left -= tokens
        bad = [row.index for row in judged_rows if self.rows[row.index].prompt == self.not_judged]
        judged = {index: verdict for index, verdict in final.items() if index not in bad}
        yield LayerVerdicts(LAYERS - 1, judged, {index: ValueError("logits are not finite") for index in bad})

    def keep(self, index: int, path: Sequence[int], token: int) -> None:
        state = self.rows[index]
        tokens = self._last[index].tokens
        state.answer += [*(tokens[node] for node in path), token]

    def _judge(self, row: Row) -> Verdict:
        self._last[row.index] = row
        state = self.rows[row.index]
        answer, node = list(state.answer), -1
        path: list[int] = []
        while True:
            token = next_token(state.prompt, state.jpeg, answer)
            children = (n for n, parent in enumerate(row.parents) if parent == node and row.tokens[n] == token)
            child = next(children, None)
            if child is None:
                return Verdict(tuple(path), token, 0.5)
            path.append(child)
            answer.append(token)
            node = child

    def _guess(self, layer: int, final: Verdict) -> Verdict:
        wrong = layer == EXITS[0] and final.token % 2 == 0
        return Verdict(final.path, 1 if wrong else final.token, 0.25 * (layer + 1))

    _last: dict[int, Row] = field(default_factory=dict)


@dataclass
class FakeSelfDraft:
    """Drafts the target's tokens, but for every `wrong`th answer position; 0: never wrong."""

    wrong: int = 3
    fail_on: str = ""
    """A prompt whose drafting raises."""
    rows: dict[int, tuple[str, Jpegs]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    """Tokens of prompts that are still to be fed, by row."""
    encoded: set[int] = field(default_factory=set)
    chunks: list[tuple[int, int]] = field(default_factory=list)
    """Rows and tokens that were fed; 0 for an image."""
    batches: list[dict[int, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return "fake draft"

    def prepare(self, prompt: str, jpeg: Jpegs) -> tuple[str, Jpegs]:
        return prompt, jpeg

    def size(self, inputs: tuple[str, Jpegs]) -> int:
        return len(inputs[0])

    def release(self, index: int) -> None:
        self.rows.pop(index, None)
        self.left.pop(index, None)

    def image_tokens(self, inputs: tuple[str, Jpegs]) -> int:
        return 1

    def begin(self, index: int, inputs: tuple[str, Jpegs], max_tokens: int) -> int:
        self.rows[index], self.left[index] = inputs, len(inputs[0]) - 1
        self.encoded.discard(index)
        return self.left[index]

    def encode(self, index: int, stop: Stop | None = None) -> None:
        assert index not in self.encoded
        self.encoded.add(index)
        self.chunks.append((index, 0))

    def feed(self, index: int, tokens: int, stop: Stop | None = None) -> None:
        assert index in self.encoded and 0 < tokens <= self.left[index]
        self.left[index] -= tokens
        self.chunks.append((index, tokens))

    def draft(self, rows: Sequence[Row]) -> Iterator[Mapping[int, Tree]]:
        assert not any(self.left[row.index] for row in rows), "a row drafts before its prompt is fed"
        self.batches.append({row.index: row.self_draft for row in rows})
        if any(self.rows[row.index][0] == self.fail_on for row in rows):
            raise RuntimeError("out of memory")
        drafts: dict[int, tuple[int, ...]] = {row.index: () for row in rows}
        for turn in range(max(row.self_depth or row.self_draft for row in rows)):
            for row in rows:
                known = drafts[row.index]
                if turn < (row.self_depth or row.self_draft) and EOS not in known:
                    answer = [*row.answer, *known]
                    token = next_token(*self.rows[row.index], answer)
                    fails = self.wrong > 0 and len(answer) % self.wrong == self.wrong - 1
                    drafts[row.index] = (*known, (token + 1) % VOCABULARY if fails else token)
            yield {
                index: Tree.own(
                    tokens, range(-1, len(tokens) - 1), [0.8 ** (1 + place) for place in range(len(tokens))]
                )
                for index, tokens in drafts.items()
            }
