"""A fed head that looks its outputs up in a recording and takes its declared time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from speculation.cancellation import Abandoned, Stop
from speculation.distributions import Logits
from speculation.wire import ROOT, Jpegs
from vlm_nav_evaluation.virtual_time.models import LEAST, RecordedDraftModel, Sleep, noises
from vlm_nav_evaluation.virtual_time.recording import Recording
from vlm_nav_evaluation.virtual_time.timings import Timings


class RecordedFedModel(RecordedDraftModel):
    """A `FedModel`; counts nodes and forwards, one a level, as `speculation.fed.session.FedSession` does.

    An output has the depth of the chain that it continues: 1 behind the target's feature, one more behind each of the
    head's own. So what was drafted before a commit keeps its depth, and what is drafted behind it goes on from there;
    only the root, once it is fed, is computed again at depth 1. In the real layer, attention sees the new features of
    the committed tokens even then, which no recording holds. Depths beyond the recorded ones are the deepest of these.
    """

    def __init__(self, recording: Recording, timings: Timings, sleep: Sleep) -> None:
        """Raises ValueError for a recording without a head."""
        if recording.fed is None:
            raise ValueError("the recording has no fed head; record the pair with --fed-head")
        super().__init__(recording, timings, sleep)
        self._shape = recording.fed
        self.tokens: npt.NDArray[np.int64] = np.array(recording.fed.short_list, dtype=np.int64)
        self._depths: list[int] = []
        """Depth of each node's output."""
        self._root_depth = 1
        self._known = False
        """Whether the root's output is that of its entry as it stands."""
        self._has_root = False
        self._fed_to = 0
        """The answer position behind the last token whose entry has the target's feature."""
        self._replaced = 0
        """Entries whose keys and values the next forward projects again."""

    @property
    def root_is_new(self) -> bool:
        return self._has_root and not self._known

    def begin(self, prompt: str, image: Jpegs, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        """It takes no time: a head reads no frame and no prompt."""
        self._take_step(self._recording.of_image(image), committed)
        self._depths = []
        self._has_root, self._known = bool(committed), False
        self._root_depth, self._fed_to, self._replaced = 1 + len(committed), 0, len(committed)

    def feed(self, tokens: Sequence[int], end: int, packed: bytes) -> None:
        if len(packed) != len(tokens) * self._shape.token_bytes:
            raise ValueError(f"{len(packed)} bytes of features for {len(tokens)} tokens")
        here, first = self._root.place, end - len(tokens)
        if first > here or (not self._has_root and end > 0):
            raise ValueError(f"features of answer positions {first} to {end} do not reach those up to {here}")
        if list(tokens[max(0, -first) : here - first]) != list(self._step.tokens[max(0, first) : min(end, here)]):
            raise ValueError(f"features of answer positions {first} to {end} are of other tokens than those committed")
        self._has_root, self._known = True, False
        self._replaced += min(end, here) - first
        self._fed_to = max(self._fed_to, min(end, here))
        if self._fed_to == here:
            self._root_depth = 1

    def root_logits(self, stop: Stop | None = None) -> Logits:
        """Return the logits after the root. Raises RuntimeError while there is none."""
        self._check_root()
        if self.root_is_new:
            self._compute([1], stop)
        return self._row(ROOT)

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        """Feed tokens, a forward for each level of them. Raises RuntimeError while there is no root."""
        self._check_root()
        first, levels = len(self._nodes), list[int]()
        for parent in parents:
            above = levels[parent - first] if parent >= first else (0 if parent == ROOT and self.root_is_new else -1)
            levels.append(above + 1)
        sizes = np.bincount([*levels, *([0] if self.root_is_new else [])], minlength=1)
        self._compute([int(size) for size in sizes], stop)
        for parent in parents:
            self._depths.append(1 + (self._root_depth if parent == ROOT else self._depths[parent]))
        self._add(tokens, parents)
        return np.stack([self._row(node) for node in range(first, len(self._nodes))])

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        depths = self._depths
        before = (depths[path[-1]] if path else self._root_depth) if self._has_root else 0
        renamed = super().commit(path, next_token)
        # Where the token was not drafted its entry continues from what the head put out before it.
        self._root_depth = next((depths[node] for node, now in renamed.items() if now == ROOT), before + 1)
        self._known = bool(renamed)
        self._has_root = True
        self._depths = [depths[node] for node, now in renamed.items() if now != ROOT]
        return renamed

    def _compute(self, sizes: Sequence[int], stop: Stop | None) -> None:
        """Let the forwards over levels of so many nodes pass; `stop` is called before each."""
        for size in sizes:
            if stop is not None and stop():
                raise Abandoned
            self._spend(self._timings.fed_forward_s(size + self._replaced), None)
            self._replaced = 0
        self._known = True

    def _row(self, node: int) -> Logits:
        """Return the logits after a node or the root, [vocabulary]."""
        step, prefix = self._step, self._root if node == ROOT else self._nodes[node]
        assert step.fed_tokens is not None and step.fed_probabilities is not None, "every step has the head's"
        place = min(prefix.place, len(step.tokens) - 1)
        depth = min(self._root_depth if node == ROOT else self._depths[node], step.fed_tokens.shape[1])
        chances = np.maximum(step.fed_probabilities[place, depth - 1].astype(np.float64), LEAST)
        likely = step.fed_tokens[place, depth - 1]
        if not prefix.on_path(step.tokens):
            likely = np.array(noises(prefix, len(likely), self._recording))
        row: Logits = np.full(self._recording.vocabulary, -np.inf)
        others = max(1, len(self.tokens) - len(chances))
        row[self.tokens] = np.log(max(1.0 - float(chances.sum()), LEAST) / others)
        row[likely] = np.log(chances)
        return row

    def _check_root(self) -> None:
        if not self._has_root:
            raise RuntimeError("the head has no root yet; begin with committed tokens, or feed it")
