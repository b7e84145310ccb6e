"""A message that reached the verifier as garbage costs its repetition; what no message can take is not sent at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_drafter import DraftingConfig, Interruption, Mode, StepInterrupted
from speculation.wire import MAX_IMAGE_BYTES, MAX_PROMPT_CHARS, AnyMessage, Draft, Fault, FaultCode, encode
from tests.edge_drafter.fakes import Bench, FakeLink, Weather, alone, counting, request

GARBLED = Fault(FaultCode.MALFORMED, "malformed message: Draft.tokens: \x1b[2J")


class Garbling(FakeLink):
    """A link on which the first drafts arrive as garbage."""

    garbled = 2

    def send(self, message: AnyMessage) -> None:
        if isinstance(message, Draft) and self.garbled:
            self.garbled -= 1
            # What a verifier answers, which may have read whose step it was.
            self._inbox.append(Fault(GARBLED.code, GARBLED.message, message.step if message.step % 2 else None))
            return
        super().send(message)


@pytest.mark.parametrize("step", [1, 2])
def test_what_was_garbled_is_sent_again(step: int) -> None:
    bench = Bench(counting(9), counting(9), Weather(), DraftingConfig.of(Mode.SD, resend_s=1.0), link=Garbling)
    result = bench.run(request(step))
    assert result.tokens == alone(counting(9), 24) and result.stats.resent >= 2


def test_where_all_is_garbled_the_reason_is_named() -> None:
    config = DraftingConfig.of(Mode.SD, resend_s=1.0, patience_s=5.0)
    bench = Bench(counting(9), counting(9), Weather(), config, link=Garbling)
    bench.link.garbled = 1000
    with pytest.raises(
        StepInterrupted, match="committed nothing for 5.0 s .* it could not read a message: "
    ) as stopped:
        bench.run()
    assert stopped.value.cause is Interruption.LINK_LOST and "\x1b" not in str(stopped.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompt": ""}, "the prompt has 0 characters, give 1 to 12000"),
        ({"prompt": "a" * (MAX_PROMPT_CHARS + 1)}, "the prompt has 12001 characters"),
        ({"jpeg": bytes(MAX_IMAGE_BYTES + 1)}, "the question's frames have 4194305 bytes, the limit is 4194304"),
        ({"jpeg": (b"old", bytes(MAX_IMAGE_BYTES))}, "the question's frames have 4194307 bytes"),
        ({"jpeg": (b"frame",) * 5}, "the question has 5 frames, give at most 4"),
    ],
)
def test_what_no_message_can_take_is_refused_here(changes: dict[str, object], sentence: str) -> None:
    bench = Bench(counting(9), counting(9), Weather(), DraftingConfig.of(Mode.SD))
    with pytest.raises(StepInterrupted, match=sentence) as stopped:
        bench.run(replace(request(), **changes))  # type: ignore[arg-type]
    assert stopped.value.cause is Interruption.FAILED
    assert not any(len(encode(message)) > 100 for _, message in bench.link.sent)
