"""How a goal's feedback and its end read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_vlm_nav.client import STOPPED, GoalEnd, Outcome, Progress
from spec_vlm_nav.transcript import DIM, Transcript, closing_words, printable

LEFT = "turn left large"


def test_a_transcript_has_every_fact_once_and_the_answer_before_its_decision() -> None:
    transcript, lines = Transcript(), list[str]()
    think = Progress(state="thinking", link="nominal")
    for answer in ("", "The ball", "The ball is left. Action: turn left", "The ball is left. Action: turn left large"):
        lines += transcript.take(replace(think, answer=answer))
    early = replace(think, answer="Action: turn", step=1, action="turn left small", source="verified", complete=False)
    done = replace(think, answer="The ball is left. Action: turn left large", step=0, action=LEFT, source="verified")
    lines += transcript.take(done) + transcript.take(done)
    lines += transcript.take(early) + transcript.take(
        replace(early, link="degraded", state="holding", reason="no link")
    )
    assert [line.strip() for line in lines] == [
        "thinking",
        "The ball is left. Action: turn left large",
        "0  turn left large  (verified)",
        "1  turn left small  (verified, before the answer's end)",
        "link  degraded",
        "holding: no link",
    ]
    assert transcript.rest() == ["      Action: turn"] and not transcript.rest()


@settings(max_examples=40)
@given(st.text(), st.text(), st.integers(10, 200))
def test_a_live_line_fits_the_terminal_and_nothing_in_it_steers_it(answer: str, guess: str, width: int) -> None:
    transcript = Transcript()
    lines = transcript.take(Progress(answer=answer, guess=guess))
    live = transcript.live(width)
    if live:
        committed, dimmed = live.split(DIM)
        assert len(committed) + len(dimmed.removesuffix("\x1b[0m")) <= max(width, 16)
    for text in (*lines, live.replace(DIM, "").replace("\x1b[0m", "")):
        assert text.isprintable()
    assert printable("a\x1b[2Jb\n") == "a [2Jb "


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (GoalEnd(Outcome.FOUND, "NONE", STOPPED), ["told to stop: the robot stands"]),
        (GoalEnd(Outcome.REFUSED, "NOT_ACTIVE", "not active"), ["NOT_ACTIVE", "ros2 lifecycle get /dog1/vlm_nav"]),
        (GoalEnd(Outcome.CANCELLED, "", "no answer", stopped=False), ["no answer", "NOT confirmed", "remote control"]),
    ],
)
def test_closing_words_name_what_to_do(end: GoalEnd, words: list[str]) -> None:
    """Those of the other ends are read in tests/system/test_find.py."""
    text = "\n".join(closing_words(end, "/dog1/vlm_nav", 3.0))
    assert all(word in text for word in words)
