"""Draft tokens come from these sources.

A new source is one file here that implements `DraftSource`, and its line in `drafter.sources_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from speculation.cancellation import Stop
from speculation.sampling import DraftSampler
from speculation.wire import BeginStep, Commit, Features

if TYPE_CHECKING:
    from edge_drafter.step import Step
    from edge_drafter.tree import Rerooting


class DraftSource:
    """Adds tokens to the token tree of one step after another. What a source has no use for it leaves out.

    Drafts are hints: the verifier commits the same answer whatever a source proposes.
    """

    def announce(self, begin: BeginStep) -> BeginStep:
        """Return the step's first message with what the verifier shall know of this source."""
        return begin

    def begin(self, step: Step) -> None:
        """Take up a new step, as far as that needs no forward. Commits may follow from here on."""

    def read(self, stop: Stop | None = None) -> None:
        """Read the step's frame and prompt. Called once, after `begin`, perhaps in another thread than all else.

        What that thread shares with `judge`, `propose` and `feed`, which may be called meanwhile, must not be touched.
        Raises ValueError where frame or prompt cannot be read, Abandoned where `stop` returns True.
        """

    def propose(self, node: int) -> None:
        """Add what may follow `node` as far as that needs no forward. `node` may have left the tree."""

    def grow(self, leaves: Sequence[int], stop: Stop | None = None) -> Sequence[int]:
        """Run one draft forward: add children to each of `leaves` and `TokenTree.score` it.

        `stop` is called between layers; it may re-root the tree, which `commit` reports later. Returns the likeliest
        child of each node that was scored. Raises Abandoned where `stop` returns True, and where nothing of what was
        fed is possible any more.
        """
        return ()

    def judge(self, tokens: Sequence[int]) -> None:
        """Take a verdict: `tokens` will be committed behind the tree's root, which still stands."""

    def commit(self, rerooting: Rerooting, message: Commit | None) -> None:
        """Follow a commit. Called before the next forward, so that a draft that is ready is sent first.

        Several may wait, in order. `message` is the verifier's, None where the draft answers alone.
        """

    def feed(self, message: Features) -> None:
        """Take what the verifier sends to be drafted from. It may come while a forward of this source runs."""

    def end(self, tokens: Sequence[int]) -> None:
        """Take the complete answer of the step."""

    @property
    def ready(self) -> bool:
        """Whether a forward is of use; a source that waits for the verifier's `feed` has none before."""
        return True

    @property
    def sampler(self) -> DraftSampler | None:
        """What samples this step's draft tokens, where that takes more than their order."""
        return None
