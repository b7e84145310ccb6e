"""The real verifier as a process: real sockets, a real (tiny, random) model, two robots and a vandal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cloud_verifier.__main__ import main
from speculation import wire
from speculation.wire import BeginStep, Commit, Draft, EndStep, Fault, FaultCode, Welcome
from tests import forked
from tests.cloud_verifier.process import (
    ANSWER,
    ROOT_FOLDER,
    Robot,
    Target,
    Verifier,
    answer_by_drafts,
    command,
    start,
)
from tests.cloud_verifier.test_engine import PROMPTS, jpeg


@pytest.fixture(scope="module")
def verifier(served: Target) -> Iterator[Verifier]:
    """One verifier, shared: it must outlive everything that the tests do to it."""
    verifier = start(served.folder, "--dtype", "float64", "--max-sessions", "4", "--capacity", "192", anew=True)
    yield verifier
    if verifier.process.poll() is None:
        assert verifier.stop() == 0


def test_two_robots_and_a_vandal(verifier: Verifier, served: Target) -> None:
    """Interleaved rounds of true tokens and junk; malformed bytes in between; answers are the target's own."""
    robots = [Robot(verifier.address) for _ in range(2)]
    vandal = Robot(verifier.address)
    try:
        for robot in robots:
            robot.send(served.hello)
            welcome = robot.receive()
            assert isinstance(welcome, Welcome) and welcome.exit_layers == [1, 2]
        for payload in (b"", b"\x00\xff", b"junk" * 1000, wire.encode(served.hello)[:-3]):
            vandal.socket.send(payload)
        vandal.socket.send_multipart([b"a", b"b", b"c"])
        assert answer_by_drafts(robots[0], 0, served.truths[0], right=3, junk=2) == served.truths[0]
        assert answer_by_drafts(robots[1], 1, served.truths[1], right=0, junk=4) == served.truths[1]
        refusals = [vandal.receive() for _ in range(5)]
        assert all(isinstance(fault, Fault) and fault.code is FaultCode.MALFORMED for fault in refusals)
        good, bad = (robot.commits for robot in robots)
        assert sum(commit.passes for commit in good) < sum(commit.passes for commit in bad) <= ANSWER
        assert good[0].prefill_s > 0.0 and good[-1].compute_s > 0.0
        assert robots[0].early and {early.layer for early in robots[0].early} <= {1, 2}
    finally:
        for robot in (*robots, vandal):
            robot.close()


def answered(robot: Robot, expected: list[int]) -> Commit:
    """Receive these tokens, the first of which may come by itself, with the end of the prefill."""
    tokens: list[int] = []
    while len(tokens) < len(expected):
        commit = robot.receive()
        assert isinstance(commit, Commit), commit
        tokens += commit.tokens
    assert tokens == expected
    return commit


def test_a_robot_takes_its_answer_along_to_a_restarted_verifier(served: Target, tmp_path: Path) -> None:
    """Kill the verifier in the middle of an answer: the next one goes on from the committed tokens."""
    truth = served.truths[2]
    first = start(served.folder, "--dtype", "float64", "--capacity", "192", "--max-sessions", "1")
    robot = Robot(first.address)
    robot.send(served.hello)
    robot.send(BeginStep(1, PROMPTS[2], jpeg(2), max_tokens=ANSWER))
    robot.send(Draft(1, 1, 0, wire.begin_digest(PROMPTS[2], jpeg(2)), truth[:3]))
    assert isinstance(robot.receive(), Welcome)
    commit = answered(robot, truth[:4])
    first.stop(signal.SIGKILL)
    robot.close()
    trace = tmp_path / "verifier.json"
    second = start(served.folder, "--dtype", "float64", "--profile", "go2_a100_scaled", "--trace", str(trace))
    with closing(Robot(second.address)) as robot:
        robot.send(Draft(1, 2, 4, commit.digest, truth[4:6]))
        fault = robot.receive()
        assert isinstance(fault, Fault) and fault.code is FaultCode.NO_SESSION
        robot.send(served.hello)
        assert isinstance(robot.receive(), Welcome)
        robot.send(BeginStep(1, PROMPTS[2], jpeg(2), committed=truth[:4], max_tokens=ANSWER))
        robot.send(Draft(1, 2, 4, commit.digest, truth[4:6]))
        commit = answered(robot, truth[4:7])
        robot.send(Draft(1, 3, 7, commit.digest, [truth[7], truth[8]]))
        commit = answered(robot, truth[7:10])
        assert second.stop(signal.SIGINT) == 0
        assert robot.receive() == EndStep(1, "the verifier was stopped")
        assert "stopped after" in second.log[-1] and "sessions=1 steps=0 tokens=6" in second.log[-1]
        assert commit.compute_s >= 0.062
        assert "exits after [1, 2]" in "".join(second.log) and "profile go2_a100_scaled" in "".join(second.log)
        assert '"traceEvents"' in trace.read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--model", "nowhere"), "--model nowhere: no such folder"),
        (("--model", "x.gguf"), "--model x.gguf: GGUF files draft on a robot and serve nowhere else"),
        (("--model", "config"), "--model config: holds no model (config.json is missing)"),
        (("--model", "MODEL", "--exits", "config"), "--exits config: holds no exit heads"),
        (("--model", "MODEL", "--fed-head", "config"), "--fed-head config: holds no fed head"),
        (("--model", "MODEL", "--bind", "somewhere"), "'somewhere' is no address"),
        (("--model", "MODEL", "--keys", "config"), "--keys config: "),
        (("--model", "MODEL", "--profile", "orin"), "unknown device profile 'orin'"),
        (("--model", "MODEL", "--device", "nonsense", "--bind", "tcp://127.0.0.1:*"), "device nonsense: "),
        (("--model", "MODEL", "--bind", "tcp://127.0.0.1:*", "--trace", "README.md/x"), "--trace README.md/x: "),
        (("--model", "MODEL", "--bind", "IN USE"), "Address already in use"),
    ],
)
def test_what_cannot_start_is_one_sentence(
    verifier: Verifier, served: Target, arguments: tuple[str, ...], complaint: str
) -> None:
    known = {"MODEL": str(served.folder), "IN USE": verifier.address}
    words = command("serve", *(known.get(argument, argument) for argument in arguments))
    code, said = forked.run(words, ROOT_FOLDER)
    assert code == 2 and complaint in said
    assert len(said.strip().splitlines()) == 1 and "Traceback" not in said


def test_keygen_makes_keys_and_help_names_the_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keygen = ["keygen", "--keys", str(tmp_path / "keys")]
    assert main(keygen) == 0 and (tmp_path / "keys" / "client.key_secret").exists()
    said = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert {Path(path) for path in said} == {path for path in (tmp_path / "keys").rglob("*") if path.is_file()}
    for path, what in said.items():
        assert ("copy it to" in what) == (Path(path).name in ("server.key", "client.key_secret")), path
    assert main(keygen) == 2
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    assert "tcp://127.0.0.1:5555" in text and "{priority,fifo}" in text
