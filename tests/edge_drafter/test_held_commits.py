"""A commit that comes before the one it follows: what is sent behind the two names the answer with both."""

from __future__ import annotations

from edge_drafter import Drafter, DraftingConfig, Mode, StepInterrupted, StepRequest, sources_of
from speculation.wire import AnyMessage, BeginStep, Commit, Draft, begin_digest, extend_digest
from tests.edge_drafter.fakes import EOS, FakeClock, FakeModel

TRUTH = [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]
START = begin_digest("find it", b"jpeg")


def digest(end: int) -> bytes:
    return extend_digest(START, TRUTH[:end])


class LateCommitLink:
    """A verifier that answers the first draft with two commits, the second one first, and later ones with silence."""

    rtt_s = None
    bytes_up = bytes_down = 0

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.drafts: list[Draft] = []
        self.coming: list[Commit] = []

    def send(self, message: AnyMessage) -> None:
        assert isinstance(message, (BeginStep, Draft)) or self._clock.now > 1.0
        if isinstance(message, Draft):
            self.drafts.append(message)
            if len(self.drafts) == 1:
                later = Commit(1, 1, 2, [TRUTH[2]], digest(3), False)
                self.coming = [later, Commit(1, 1, 0, TRUTH[:2], digest(2), False)]

    def receive(self, timeout: float) -> AnyMessage | None:
        if self.coming and self._clock.now > 0.5:
            return self.coming.pop(0)
        self._clock.now += min(max(timeout, 0.01), 0.1)
        return None


def test_a_draft_names_the_answer_that_it_follows() -> None:
    clock = FakeClock()
    model = FakeModel(lambda prefix: TRUTH[len(prefix) % len(TRUTH)], clock, 0.01)
    config = DraftingConfig.of(Mode.PROACTIVE, gamma=1, draft_tokens=0, resend_s=100.0)
    link = LateCommitLink(clock)
    drafter = Drafter(sources_of(config, model), link, config, clock, cpu_clock=lambda: 0.0)
    request = StepRequest(1, "find it", b"jpeg", (EOS,), len(TRUTH), deadline_s=3.0)
    try:
        drafter.run(request)
    except StepInterrupted as stop:
        assert list(stop.committed) == TRUTH[:3]
    assert len(link.drafts) > 1
    for draft in link.drafts:
        assert draft.digest == digest(draft.start)
        assert draft.tokens == TRUTH[draft.start : draft.start + len(draft.tokens)]
