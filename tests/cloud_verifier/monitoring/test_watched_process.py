"""A real verifier with --http: ready when it serves, its figures those of what it answered, its log in JSON lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from cloud_verifier.__main__ import main
from speculation.wire import BeginStep, Commit, Idle, Welcome
from tests.cloud_verifier.process import ANSWER, PROMPTS, Robot, Target, Verifier, figure, jpeg, start
from tests.edge_drafter.test_decoder import wait_for

TRACE = bytes(range(16))


@pytest.fixture(scope="module")
def verifier(served: Target) -> Iterator[Verifier]:
    words = ("--dtype", "float64", "--http", "0", "--log-format", "json", "--max-sessions", "2")
    verifier = start(served.folder, *words)
    yield verifier
    assert verifier.stop() == 0


def pages_of(verifier: Verifier) -> str:
    (line,) = (line for line in verifier.log if "figures at" in line)
    found = re.search(r"http://[^: ]+:\d+", line)
    assert found is not None
    return found[0]


def page(verifier: Verifier, path: str) -> str:
    with urlopen(pages_of(verifier) + path, timeout=30) as reply:
        return str(reply.read().decode())


def is_ready(verifier: Verifier) -> bool:
    try:
        return page(verifier, "/ready") == "ok\n"
    except HTTPError:
        return False


def test_a_robots_step_is_in_the_figures_and_by_its_trace_in_the_log(
    verifier: Verifier, served: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    url = pages_of(verifier)
    assert page(verifier, "/health") == "ok\n"
    wait_for(lambda: is_ready(verifier))  # it is, a moment after the line that it serves
    with closing(Robot(verifier.address)) as robot:
        robot.send(served.hello)
        assert isinstance(robot.receive(), Welcome)
        message = BeginStep(1, PROMPTS[0], jpeg(0), max_tokens=ANSWER, idle=Idle.DECODE, trace=TRACE)
        robot.send(message)
        done, tokens = False, 0
        while not done:
            commit = robot.receive()
            assert isinstance(commit, Commit)
            done, tokens = commit.done, tokens + len(commit.tokens)
        # They are published once a second, in the midst of an answer too.
        tokens_total = 'generation_tokens_total{class="interactive"}'
        wait_for(lambda: figure(url, tokens_total) == tokens)
        wait_for(lambda: json.loads(page(verifier, "/load"))["robots"])
    assert tokens == len(served.truths[0])
    assert figure(url, 'ledger_choices_total{choice="decode"}') == tokens
    assert figure(url, "ready") == 1 and figure(url, 'engine_busy_seconds_total{work="verify"}') > 0
    assert json.loads(page(verifier, "/version"))["fingerprint"] == served.hello.model
    assert json.loads(page(verifier, "/load"))["session_places"] == 2
    wait_for(lambda: any('"event": "step"' in line for line in verifier.log))
    lines = [json.loads(line) for line in verifier.log]
    (step,) = (line for line in lines if line["event"] == "step")
    assert (step["session"], step["step"], step["how"], step["trace"]) == (1, 1, "done", TRACE.hex())
    assert {"time", "level", "logger", "message"} <= step.keys()
    assert main(["top", "--once", url]) == 0
    assert "interactive" in capsys.readouterr().out
