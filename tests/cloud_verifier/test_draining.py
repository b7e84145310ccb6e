"""A verifier that is drained sends its robots elsewhere, each between two answers, and no committed token is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cloud_verifier.server import SHED, Server
from cloud_verifier.session_lifecycle import DRAINING
from cloud_verifier.slo import Standing
from speculation.profiles import DeviceProfile
from speculation.wire import BeginStep, EndStep, Fault, FaultCode, Idle, Redirect, Welcome
from tests.cloud_verifier.bench import CONFIG, HELLO, JPEG, Bench, begin, faults, tokens_of

AWAY = Redirect(reason=DRAINING)
DECODED = BeginStep(1, "long", JPEG, max_tokens=10, idle=Idle.DECODE)


class Place:
    """A place in a cluster whose tickets admit whom `admits` says, and which keeps all reports."""

    def __init__(self, admits: Callable[[bytes, str], bool] = lambda ticket, client: True) -> None:
        self._admits = admits
        self.reports: list[Standing] = []

    def check_ticket(self, ticket: bytes, client: str) -> None:
        if not self._admits(ticket, client):
            raise ValueError("not yours")

    def report(self, standing: Standing) -> None:
        self.reports.append(standing)


def draining(seconds: float) -> Bench:
    return Bench(CONFIG.changed(drain_s=seconds))


def test_a_robot_without_a_step_goes_at_once_and_nobody_is_let_in() -> None:
    bench = draining(60.0).with_robots(b"a", b"b")
    bench.ask(b"b", begin())
    bench.server.drain()
    assert bench.ask(b"a") == [AWAY]
    assert bench.ask(b"c", HELLO) == [AWAY]
    assert bench.ask(b"a", HELLO) == [AWAY]
    assert AWAY not in bench.received(b"b")


@pytest.mark.parametrize("seconds", [60.0, 1.0])
def test_a_robot_amid_an_answer_goes_at_its_end_or_when_it_is_time_and_loses_no_token(seconds: float) -> None:
    truth = tokens_of(Bench().ask(b"a", HELLO, DECODED))
    bench = draining(seconds)
    bench.send(b"a", HELLO)
    bench.send(b"a", DECODED)
    while len(tokens_of(bench.received(b"a"))) < 2:
        bench.server.turn()
    bench.server.drain()
    bench.server.turn()
    assert AWAY not in bench.received(b"a")
    bench.post.now += 1.0
    bench.server.run()
    received = bench.received(b"a")
    committed = tokens_of(received)
    assert received[-1] == AWAY and (committed == truth) == (seconds > 1.0)
    other = Bench()
    other.welcome(b"a")
    again = BeginStep(1, "long", JPEG, committed, 10, Idle.DECODE)
    assert committed + tokens_of(other.ask(b"a", again)) == truth


def test_nobody_waits_for_a_robot_that_is_gone_in_the_midst_of_its_answer() -> None:
    bench = draining(60.0).with_robots(b"a")
    bench.ask(b"a", begin())
    bench.post.gone.add(b"a")
    before = bench.post.now
    bench.server.drain()
    bench.server.run()
    assert bench.post.now - before < 1.0


def test_without_time_it_stops_at_once_and_with_time_it_does_not_however_often_it_is_drained() -> None:
    for seconds, last in ((0.0, EndStep(1, "the verifier was stopped")), (5.0, AWAY)):
        bench = draining(seconds)
        bench.welcome(b"a")
        bench.ask(b"a", begin())
        bench.server.drain()
        bench.server.drain()
        bench.server.run()
        assert bench.received(b"a")[-1] == last


@pytest.mark.parametrize("end", [Server.drain, Server.stop])
def test_one_of_a_cluster_loses_no_step_however_it_ends(end: Callable[[Server], None]) -> None:
    """An EndStep would be the step's end, although another replica can go on with it."""
    bench, config = Bench(), CONFIG.changed(drain_s=0.0)
    bench.server = Server(bench.machine, config, bench.post, bench.post.clock, membership=Place())
    bench.welcome(b"a")
    bench.ask(b"a", begin())
    end(bench.server)
    bench.server.run()
    (last,) = [each for each in bench.received(b"a") if isinstance(each, EndStep | Redirect)]
    assert isinstance(last, Redirect)


def test_some_robots_are_sent_elsewhere_between_their_answers_and_the_others_stay() -> None:
    bench = Bench().with_robots(b"a", b"b")
    bench.ask(b"a", begin())
    bench.server.shed(2)
    assert bench.ask(b"b") == [Redirect(reason=SHED)]
    assert Redirect(reason=SHED) not in bench.received(b"a")
    bench.ask(b"a", EndStep(1, "done"))
    assert bench.received(b"a")[-1] == Redirect(reason=SHED)
    assert isinstance(bench.ask(b"c", HELLO)[0], Welcome)


def test_a_place_in_a_cluster_hears_how_many_commits_were_late() -> None:
    """Four tokens a second where the robot's class was promised eight."""
    bench, place = Bench(profile=DeviceProfile("slow", verify_s=0.25)), Place()
    bench.server = Server(bench.machine, CONFIG, bench.post, bench.post.clock, membership=place)
    bench.ask(b"a", HELLO, DECODED)
    (robots,) = {each.sessions for each in place.reports if each.late}
    assert robots == 1 and place.reports[-1].late == pytest.approx(0.9, abs=0.02)


def test_only_a_ticket_lets_a_new_robot_in_and_a_session_is_resumed_without() -> None:
    bench = Bench()
    place = Place(lambda ticket, client: ticket == client.encode())
    bench.server = Server(bench.machine, CONFIG, bench.post, bench.post.clock, membership=place)
    bench.post.clients |= {b"a": "a", b"b": "a"}
    refused = bench.ask(b"a", HELLO)
    assert faults(refused) == [FaultCode.NO_TICKET]
    assert isinstance(refused[0], Fault) and refused[0].message == "Hello.ticket: not yours"
    (welcome,) = bench.ask(b"a", type(HELLO)(HELLO.tokenizer, HELLO.vocabulary, ticket=b"a"))
    assert isinstance(welcome, Welcome)
    resumed = type(HELLO)(HELLO.tokenizer, HELLO.vocabulary, resume=welcome.session)
    (again,) = bench.ask(b"b", resumed)
    assert isinstance(again, Welcome) and again.session == welcome.session
