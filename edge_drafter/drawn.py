"""A draft model for rejection sampling: it samples its tokens and keeps the distributions that they are from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_drafter.protocols import DraftModel
from speculation.cancellation import Stop
from speculation.distributions import Logits
from speculation.rejection import Purpose, draw_from_head, draw_rest, noisy, pack, unpack
from speculation.sampling import Distribution, Rule, SamplingSettings
from speculation.wire import MAX_IMAGE_BYTES, ROOT, Masses, extend_digest


class DrawnModel:
    """A `DraftModel` whose logits are log probabilities plus noise of their prefix: the likeliest token is a draw.

    A prefix draws the same token however often it is fed. What was drawn from is kept as long as the prefix may be
    committed. Made anew for every answer.
    """

    def __init__(self, model: DraftModel, settings: SamplingSettings, digest: bytes) -> None:
        """`digest` names the answer as it stands where `begin` takes it up."""
        self._model = model
        self._settings = settings
        self._root = digest
        self._nodes: list[bytes] = []
        """Digests of the prefixes that end with each node."""
        self._after: dict[bytes, Distribution] = {}

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = ()) -> None:
        """See `DraftModel.begin`."""
        self._model.begin(prompt, image, committed)
        self._nodes, self._after = [], {}

    def root_logits(self, stop: Stop | None = None) -> Logits:
        """See `DraftModel.root_logits`; -inf for tokens that may not be drawn."""
        return self._draw(self._model.root_logits(stop), self._root)

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        """See `DraftModel.extend`; -inf for tokens that may not be drawn."""
        rows = self._model.extend(tokens, parents, stop)
        first = len(self._nodes)
        for token, parent in zip(tokens, parents, strict=True):
            above = self._root if parent == ROOT else self._nodes[parent]
            self._nodes.append(extend_digest(above, [token]))
        drawn = [self._draw(row, digest) for row, digest in zip(rows, self._nodes[first:], strict=True)]
        return np.stack(drawn) if drawn else rows

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        """See `DraftModel.commit`."""
        renamed = self._model.commit(path, next_token)
        self._root = extend_digest(self._nodes[path[-1]] if path else self._root, [next_token])
        kept = sorted((new, old) for old, new in renamed.items() if new != ROOT)
        self._nodes = [self._nodes[old] for _, old in kept]
        known = {self._root, *self._nodes}
        self._after = {digest: after for digest, after in self._after.items() if digest in known}
        return renamed

    def evidence(self, prefix: bytes, tokens: Sequence[int]) -> tuple[list[float], list[Masses]]:
        """Return `Draft.chosen` and `Draft.whole` of a chain behind the prefix with this digest, as the rule asks for.

        Raises ValueError for distributions that no message can take.
        """
        chosen, whole = [], []
        for token in tokens:
            source = self._after[prefix]
            chosen.append(float(source.row[token]))
            if self._settings.rule is Rule.WHOLE:
                whole.append(pack(source))
            prefix = extend_digest(prefix, [token])
        size = sum(len(each.weights) + len(each.ids) for each in whole)
        if size > MAX_IMAGE_BYTES:
            raise ValueError(
                f"sampling whole: the distributions of {len(tokens)} draft tokens take {size / 1e6:.1f} MB, the limit "
                f"is {MAX_IMAGE_BYTES / 1e6:.1f} MB; draft fewer tokens (gamma), or set top_k or top_p"
            )
        return ([], whole) if self._settings.rule is Rule.WHOLE else (chosen, [])

    def draw_rest(self, prefix: bytes, target: Masses) -> int | None:
        """Return the token after the one that was rejected behind a prefix; None where the target's tail decides it.

        Raises ValueError for masses that are no distribution over this vocabulary, or a prefix that was never drafted.
        """
        source = self._after.get(prefix)
        if source is None:
            raise ValueError("Commit.rest is about a place where nothing was drafted")
        if target.tail:
            return draw_from_head(target, source, prefix)
        keep = self._settings.keep if self._settings.rule is Rule.SPARSE else 0
        return draw_rest(unpack(target, len(source.weights)), source, prefix, keep)

    def _draw(self, logits: Logits, prefix: bytes) -> Logits:
        source = self._after[prefix] = Distribution.of(logits, self._settings)
        return noisy(source.row, prefix, Purpose.DRAFT)
