"""What the server counts, on a virtual clock and an engine whose answers are known, and what others read of it."""

from __future__ import annotations

import pytest

from cloud_verifier.monitoring import series as s
from cloud_verifier.monitoring.figures import PUBLISH_S, Figures, Phase
from cloud_verifier.monitoring.health import VerifierHealth
from cloud_verifier.monitoring.series import MOST_ROBOTS, OTHER, PREFIX, Series
from speculation.profiles import DeviceProfile
from speculation.wire import BeginStep, EndStep, Idle, Masses, Ping
from tests.cloud_verifier.bench import HELLO, JPEG, Bench, begin, draft
from tests.cloud_verifier.fake_target import VOCABULARY, FakeEngine, greedy

TRUTH = greedy("long", JPEG, 8)
REST = Masses(bytes(4), 1.0)


def shot(bench: Bench) -> Figures:
    """Return the figures after the time between two copies has passed."""
    bench.post.now += PUBLISH_S
    bench.turns(1)
    return bench.server.figures


def observed(figures: Figures, series: Series, *labels: str) -> tuple[float, float]:
    """Return how many values a histogram got, and their sum."""
    named = dict(zip(series.labels, labels, strict=True))
    count, total = (
        figures.registry.get_sample_value(f"{PREFIX}{series.name}_{part}", named) for part in ("count", "sum")
    )
    assert count is not None and total is not None
    return count, total


def test_a_draft_is_counted_by_token_level_and_position() -> None:
    bench = Bench().with_robots(b"a")
    wrong = (TRUTH[3] % (VOCABULARY - 1)) + 1
    bench.ask(b"a", begin(max_tokens=8), draft([*TRUTH[:3], wrong]))
    found = shot(bench)
    assert found.value(s.DRAFTS, "edge") == 1
    assert found.value(s.DRAFT_TOKENS, "edge") == found.value(s.DRAFT_LEVELS, "edge") == 4
    assert found.value(s.ACCEPTED, "edge") == 3
    assert found.values(s.ACCEPTED_AT) == {("0",): 1, ("1",): 1, ("2",): 1}
    assert found.total(s.GENERATION_TOKENS) == found.value(s.GENERATION_TOKENS, "interactive") == 4
    assert found.value(s.CHOICES, "verify") == 1 and found.value(s.CHOICES, "decode") == 0
    (session,) = found.latest.sessions
    assert (session.acceptance, session.tokens, session.state) == (0.75, 4, "drafting")
    assert found.value(s.ROBOTS, "drafting") == found.value(s.RUNNING) == 1
    assert found.value(s.ROBOT_ACCEPTED, "unnamed") == 3


def test_a_step_is_counted_from_its_begin_to_its_end() -> None:
    bench = Bench(profile=DeviceProfile("slow", verify_s=0.25)).with_robots(b"a")
    bench.ask(b"a", begin(max_tokens=8, idle=Idle.DECODE))
    found = shot(bench)
    assert found.value(s.REQUESTS, "done") == 1 and found.value(s.CHOICES, "decode") == 8
    assert found.value(s.PROMPT_TOKENS) == len("long")
    assert observed(found, s.TTFT, "interactive") == (1, pytest.approx(0.0))
    assert observed(found, s.E2E) == (1, pytest.approx(7 * 0.25))
    assert observed(found, s.INTER_TOKEN, "interactive") == (8, pytest.approx(7 * 0.25))
    # 4 tokens a second where 8 were promised, behind the first, which comes with the prefill
    assert (found.value(s.COMMITS, "interactive"), found.value(s.VIOLATIONS, "interactive")) == (8, 7)
    assert found.value(s.BUSY_TIME, "verify") == pytest.approx(7 * 0.25)
    assert found.latest.sessions[0].tokens_per_s == pytest.approx(8 / (7 * 0.25))


@pytest.mark.parametrize("how", ["cancelled", "superseded", "refused", "failed", "lost"])
def test_every_end_of_a_step_is_counted_once(how: str) -> None:
    bench = Bench(engine=FakeEngine(fail_on="long bad")).with_robots(b"a")
    if how == "failed":
        bench.ask(b"a", begin(prompt="long bad", idle=Idle.DECODE))
    elif how == "refused":
        bench.ask(b"a", BeginStep(1, "long", b"no jpeg"))
    else:
        bench.ask(b"a", begin())
        if how == "lost":
            bench.ask(b"a", HELLO)
        else:
            bench.ask(b"a", EndStep(1, "enough") if how == "cancelled" else begin(2))
    found = shot(bench)
    assert {labels[0]: n for labels, n in found.values(s.REQUESTS).items() if n} == {how: 1}


def test_states_of_robots_and_full_places() -> None:
    bench = Bench().with_robots(b"a", b"b")
    bench.ask(b"a", begin())
    health = VerifierHealth(bench.server.figures, bench.post.clock, 60.0)
    bench.server.figures.phase = Phase.SERVING
    for peer in (b"a", b"b"):
        bench.send(peer, Ping(1))
    found = shot(bench)
    assert found.value(s.PLACES) == 2 and health.ready_problem().startswith("full: all 2 sessions")
    bench.post.gone.add(b"b")
    bench.send(b"b", begin(idle=Idle.DECODE))
    bench.turns()
    found = shot(bench)
    assert [each.state for each in found.latest.sessions] == ["drafting", "away"]
    assert not health.ready_problem(), "the place of a robot that is gone is free for another"
    assert found.value(s.LOST) == 1 and found.value(s.ROBOT_LOST, "unnamed") == 1


def test_a_forward_that_goes_on_between_its_layers_is_a_sign() -> None:
    bench = Bench(profile=DeviceProfile("slow", verify_s=40.0)).with_robots(b"a")
    ages: list[float] = []
    engine = bench.engine
    judge = engine.verify

    def verify(rows):  # type: ignore[no-untyped-def]
        for output in judge(rows):
            ages.append(bench.post.now - bench.server.figures.beat)
            yield output

    engine.verify = verify  # type: ignore[method-assign]
    bench.ask(b"a", begin(max_tokens=2, idle=Idle.DECODE))
    assert bench.post.now > 40.0 and max(ages) < 11.0


def test_a_robot_that_is_gone_leaves_no_gauge_that_would_alert_for_ever() -> None:
    bench = Bench().with_robots(b"a")
    bench.ask(b"a", begin(round_trip_s=0.4))
    found = shot(bench)
    assert found.values(s.ROBOT_RTT) == {("unnamed",): 0.4} and found.values(s.ROBOT_SILENT).keys() == {("unnamed",)}
    bench.post.now += 3600.0
    bench.turns(1)
    found = shot(bench)
    assert not found.latest.sessions and not found.values(s.ROBOT_RTT) and not found.values(s.ROBOT_SILENT)


def test_robots_beyond_the_limit_share_a_label() -> None:
    figures = Figures(lambda: 0.0)
    labels = [figures.robot(f"go2-{number}") for number in range(MOST_ROBOTS + 5)]
    assert labels[-5:] == [OTHER] * 5 and len(set(labels)) == MOST_ROBOTS + 1
    assert figures.robot("go2-0") == "go2-0"
    for series in (s.ROBOT_TOKENS, s.ROBOT_LEVELS, s.ROBOT_ACCEPTED, s.ROBOT_LOST):
        begun = figures.values(series)
        assert begun == dict.fromkeys(begun, 0.0) and len(begun) == MOST_ROBOTS + 1, "rates have a beginning"
