"""Requests beside robots, on virtual time, and beside requests of others: nobody waits for what is not theirs."""

from __future__ import annotations

import asyncio

import pytest

from cloud_verifier.openai_api.messages import ApiError
from cloud_verifier.openai_api.verifier_sessions import MOST_WAITING, Home, Question, VerifierSessions
from speculation.service_classes import BATCH, INTERACTIVE
from vlm_nav_evaluation.fleet.figures import Window, run
from vlm_nav_evaluation.fleet.systems import Setting
from vlm_nav_evaluation.fleet.wisp import QUICK, systems, times_of

ROBOTS, REQUESTS = 8, 4
"""Sessions of the default `--api-sessions`, which ask again as soon as they are answered."""


@pytest.mark.parametrize("system", ["central", "wisp", "full_budget"])
def test_robots_keep_their_class(system: str) -> None:
    classes = (INTERACTIVE.name,) * ROBOTS + (BATCH.name,) * REQUESTS
    setting = Setting(systems()[system], times_of("appendix C"), QUICK, classes)
    figures = run(setting, len(classes), 1, Window(4.0, 10.0))
    assert figures.by_class[INTERACTIVE.name] == 0.0 and figures.requests > len(classes)
    assert figures.by_class.get(BATCH.name, 0.0) == 0.0, "they are answered, too"


def test_a_client_whose_requests_wait_leaves_others_their_turn() -> None:
    async def run() -> None:
        sessions = VerifierSessions(Home("tcp://127.0.0.1:1", None, True, "", 1), most=0, per_client=1)
        question = Question("what is it?", b"", 1)
        waiting = [asyncio.create_task(anext(sessions.answer("alice", question))) for _ in range(MOST_WAITING)]
        others = asyncio.create_task(anext(sessions.answer("bob", question)))
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="your requests wait"):
            await anext(sessions.answer("alice", question))
        assert not others.done()
        for task in (*waiting, others):
            task.cancel()
        await asyncio.gather(*waiting, others, return_exceptions=True)
        sessions.close()

    asyncio.run(run())
