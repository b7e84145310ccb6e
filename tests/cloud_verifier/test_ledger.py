"""The ledger: never more than one plain decode behind decoding alone, and faster wherever drafts are worth it."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cloud_verifier.acceptance_stats import PassVerdict
from cloud_verifier.choice import Act
from cloud_verifier.config import Scheduling
from cloud_verifier.estimator import Costs, DraftCosts, Estimator
from cloud_verifier.ledger import Ledger
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.tree import Tree
from speculation.acceptance import expected_tokens
from speculation.pass_cost import Load, PassCost
from speculation.wire import Commit
from tests.cloud_verifier.timeline import (
    GO2,
    MODEL,
    TAU,
    VOCABULARY,
    SteadyEdge,
    Timeline,
    answer,
    behind,
    go2_pass,
    pace,
    stop_and_wait_speed,
)

DECODE_S = 0.1


class ErraticEdge:
    """Sends anything at any time: drafts right or wrong, ahead or late, trees, several at once, or nothing at all."""

    def __init__(self, timeline: Timeline, seed: int, quality: float, most: int, slowest: float) -> None:
        self._line, self._random = timeline, random.Random(seed)
        self.quality, self._most, self._slowest = quality, most, slowest
        timeline.on_commit = self.receive

    def receive(self, commit: Commit) -> None:
        end = commit.start + len(commit.tokens)
        for _ in range(self._random.choice([0, 1, 1, 1, 2])):
            start = max(0, end + self._random.choice([-3, -1, 0, 0, 0, 0, 1, 2, 5]))
            if start < len(self._line.truth):
                delay = self._random.choice([0.0, self._random.random() * self._slowest])
                self._line.at(self._line.now + delay, partial(self._send, start))

    def _send(self, start: int) -> None:
        tokens: list[int] = []
        parents: list[int] = []
        spine = -1
        for right in self._line.truth[start : start + self._random.randint(0, self._most)]:
            if self._random.random() < 0.2:
                tokens.append(self._random.randrange(1, VOCABULARY))
                parents.append(spine)
            good = self._random.random() < self.quality
            tokens.append(right if good else self._random.randrange(1, VOCABULARY))
            parents.append(spine)
            spine = len(tokens) - 1
        self._line.draft(start, tokens[:60], parents[:60])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6),
    slope=st.floats(0.0, 0.175),
    quality=st.sampled_from([0.0, 0.3, 0.6, 0.8, 0.95, 1.0]),
    slowest=st.sampled_from([0.02, 0.1, 0.25, 1.0]),
    most=st.integers(0, 12),
    price=st.sampled_from([0.0, 0.3, 1.0]),
    hinted=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_a_step_is_never_more_than_one_plain_decode_behind_decoding_alone(
    seed: int, slope: float, quality: float, slowest: float, most: int, price: float, hinted: float
) -> None:
    """Over several steps of one session, so that estimates are learned, wrong at first, and then change their mind."""
    line = Timeline(Scheduler(MODEL, Scheduling(pass_price=price)), lambda n: DECODE_S * (1.0 + slope * (n - 1)))
    rng = random.Random(seed)
    edge = ErraticEdge(line, seed, quality, most, slowest)
    for step in range(5):
        truth = answer(rng)
        hint = [t if rng.random() < hinted else rng.randrange(1, VOCABULARY) for t in truth]
        begun = line.now
        passes = line.run(truth, hints=[hint] if rng.random() < hinted else [])
        # Below 2 before a commit is one token short.
        assert max(behind(passes, DECODE_S, begun)) <= 2.0 + line.lent + 1e-6
        if step == 2:
            edge.quality = rng.random()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    slope=st.floats(0.0, 0.175),
    noise=st.floats(0.0, 0.15),
    quality=st.sampled_from([0.0, 0.6, 0.95]),
)
def test_an_uneven_machine_does_not_make_it_lose_more(seed: int, slope: float, noise: float, quality: float) -> None:
    """What slows a pass would have slowed decoding alone; what is spent is counted at its dear end."""
    rng = random.Random(seed)

    def uneven(nominal: float) -> float:
        return nominal * (1.0 + rng.uniform(-noise, noise))

    times = Estimator()
    line = Timeline(Scheduler(MODEL, costs=Costs(times)), lambda n: DECODE_S * (1.0 + slope * (n - 1)), uneven)
    for tokens in [1, 2, 3, 5, 9] * 12:  # a server that has run for a while
        times.observe(Load.row(tokens), uneven(line.pass_s(tokens)))
    ErraticEdge(line, seed, quality, 8, 0.2)
    for _ in range(3):
        begun = line.now
        passes = line.run(answer(rng))
        assert max(behind(passes, DECODE_S, begun)) <= 2.0 + line.lent + 1e-6


@pytest.mark.parametrize(("ahead", "size"), [(0.0, 30), (0.444, 200), (0.8, 30)])
def test_on_the_go2_it_is_as_fast_as_stop_and_wait_for_at_most_a_quarter_more_passes(ahead: float, size: int) -> None:
    """1 - 0.556 is how often a draft is there in time in Early Exits; 0 is the worst edge, 0.8 a good one."""
    got = pace({**GO2, "ahead": ahead}, go2_pass, size, steps=2400 // size)
    assert got.speed > (0.97 + 0.4 * ahead) * stop_and_wait_speed()
    assert got.passes_per_token <= 1.25 / TAU


@pytest.mark.parametrize(("one_way_s", "slope"), [(0.0, 0.175), (0.02, 0.0), (0.1, 0.05), (0.5, 0.175)])
def test_a_useless_draft_costs_next_to_nothing_on_any_link(one_way_s: float, slope: float) -> None:
    edge = {"draft_s": 0.01, "one_way_s": one_way_s, "depth": 6, "chance": 0.0, "ahead": 0.0}
    got = pace(edge, lambda n: DECODE_S * (1.0 + slope * (n - 1)), size=40)
    assert got.speed >= 0.99
    if slope:
        assert got.acts[Act.VERIFY] < 0.1 * got.acts[Act.DECODE]


def test_a_useless_draft_that_becomes_a_good_one_is_used_again() -> None:
    line = Timeline(Scheduler(MODEL), lambda n: DECODE_S * (1.0 + 0.1 * (n - 1)))
    rng = random.Random(5)
    edge = SteadyEdge(line, rng, draft_s=0.005, one_way_s=0.001, depth=4, chance=0.0, ahead=0.0)
    for _ in range(10):
        line.run(answer(rng, 40))
    edge.chance = 0.9
    for _ in range(10):
        line.run(answer(rng, 40))
    begun = line.now
    line.run(answer(rng, 40))
    assert line.now - begun < 40 * DECODE_S / 1.8


def test_on_a_fast_link_it_waits_and_on_a_slow_one_it_goes_on_alone() -> None:
    edge = {"draft_s": 0.005, "depth": 4, "chance": 0.9, "ahead": 0.0}
    fast = pace({**edge, "one_way_s": 0.005}, lambda n: DECODE_S, 40)
    slow = pace({**edge, "one_way_s": 1.0}, lambda n: DECODE_S, 40)
    assert fast.acts[Act.DECODE] < 0.2 * fast.acts[Act.VERIFY] and fast.speed > 2.5
    assert slow.acts[Act.DECODE] > 10 * slow.acts[Act.VERIFY] and slow.speed >= 1.0


def test_it_does_not_wait_where_no_draft_can_come_for_the_last_token() -> None:
    """An edge sends nothing behind an answer's last but one token: the verdict adds a token of its own."""
    line, rng = Timeline(Scheduler(MODEL), lambda n: DECODE_S), random.Random(4)
    SteadyEdge(line, rng, draft_s=0.005, one_way_s=0.005, depth=4, chance=0.8, ahead=0.0)
    last, waited = 0, 0.0
    for _ in range(40):
        end = line.now
        for each in line.run(answer(rng, 12)):
            idle, end = each.start - end, each.end
            waited = max(waited, idle)
            if sum(before.tokens for before in line.passes if before.end < each.end) == 11:
                assert idle < 1e-9
                last += each.act is Act.DECODE
    assert last > 5 and waited > 0.01


def test_hints_that_repeat_are_verified_and_false_ones_soon_left_alone() -> None:
    speeds = {}
    for right in (True, False):
        line = Timeline(Scheduler(MODEL), lambda n: DECODE_S * (1.0 + 0.1 * (n - 1)))
        rng = random.Random(7)
        for _ in range(20):
            truth = answer(rng, 30)
            line.run(truth, hints=[truth if right else [*truth[:2], *answer(rng, 28)]])
        speeds[right] = 20 * 30 * DECODE_S / line.now
    assert speeds[True] > 3.0 and speeds[False] >= 0.98


def own_drafts(quality: float, rng: random.Random) -> Callable[[list[int], int], list[int]]:
    """Return a draft model each of whose tokens is right with this probability."""
    return lambda rest, levels: [
        token if rng.random() < quality else rng.randrange(1, VOCABULARY) for token in rest[:levels]
    ]


def drafting() -> Scheduler:
    """Return a scheduler with a draft model beside the target."""
    return Scheduler(MODEL, costs=Costs(drafts=DraftCosts()))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6),
    slope=st.floats(0.0, 0.175),
    quality=st.sampled_from([0.0, 0.6, 0.95]),
    own=st.sampled_from([0.0, 0.3, 0.7, 0.95, 1.0]),
    own_share=st.floats(0.01, 0.5),
    own_prefill=st.sampled_from([0.0, 0.3, 3.0]),
    slowest=st.sampled_from([0.02, 0.25]),
)
def test_with_a_draft_model_of_its_own_it_is_never_more_than_one_plain_decode_behind_either(
    seed: int, slope: float, quality: float, own: float, own_share: float, own_prefill: float, slowest: float
) -> None:
    """Beside an edge that sends anything at any time; what the draft model takes is known before the first step."""
    rng = random.Random(seed)
    line = Timeline(
        drafting(), lambda n: DECODE_S * (1.0 + slope * (n - 1)), own=own_drafts(own, rng),
        own_s=own_share * DECODE_S, own_prefill_s=own_prefill * DECODE_S,
    )  # fmt: skip
    assert line.scheduler.costs.drafts is not None
    line.scheduler.costs.drafts.forward(1, line.own_s)
    edge = ErraticEdge(line, seed, quality, 8, slowest)
    for step in range(4):
        begun = line.now
        passes = line.run(answer(rng))
        assert max(behind(passes, DECODE_S, begun)) <= 2.0 + line.lent + 1e-6
        if step == 1:
            edge.quality = rng.random()


@pytest.mark.parametrize(("own_share", "slope"), [(0.02, 0.1), (0.1, 0.0), (0.2, 0.1)])
def test_it_drafts_by_itself_about_as_fast_as_the_best_depth_would(own_share: float, slope: float) -> None:
    """Against the closed form of chains that are right with probability 0.75: E(k) / (k T_p + T_v), the best k."""
    rng = random.Random(11)
    line = Timeline(
        drafting(), lambda n: DECODE_S * (1.0 + slope * (n - 1)), own=own_drafts(0.75, rng), own_s=own_share * DECODE_S,
    )  # fmt: skip
    for _ in range(5):
        line.run(answer(rng, 60))
    begun = line.now
    for _ in range(20):
        line.run(answer(rng, 60))
    speed = 20 * 60 * DECODE_S / (line.now - begun)
    best = max(expected_tokens(0.75, k) / (k * own_share + 1.0 + slope * k) for k in range(1, 13))
    assert speed > 0.93 * best


def test_a_draft_made_here_goes_on_while_its_leaves_are_likely_and_ends_at_a_doubtful_one() -> None:
    """The draft model knows which of its tokens are right, the depth that is best on average does not."""
    rng = random.Random(9)
    line = Timeline(drafting(), lambda n: DECODE_S, own_s=0.1 * DECODE_S)
    assert line.scheduler.costs.drafts is not None
    line.scheduler.costs.drafts.prefill(0.0)
    line.run(answer(rng, 30))
    step = line.scheduler
    begin = line.begun
    step.begin(0, replace(begin, step=begin.step + 1, max_tokens=30), line.now)
    current = step.step(0)
    assert current is not None
    current.prefill.prepared(())
    step.next(line.now)
    current.prefill.draft_inputs = ()
    current.prefill.draft_ready()
    current.prefilled(0, line.now)
    (choice,) = step.next(line.now).choices.values()
    assert choice.act is Act.SELF and choice.depth > 4
    sure, doubtful = (Tree.own([1, 2], [-1, 0], [0.9, reach]) for reach in (0.85, 0.05))
    assert step.goes_on({0: sure}, 3, 0.02 * DECODE_S, line.now)
    assert not step.goes_on({0: doubtful}, 3, 0.02 * DECODE_S, line.now)
    assert not step.goes_on({0: sure}, 3, 2.5 * DECODE_S, line.now)  # the account, and what was lent, do not allow it


def test_a_useless_draft_model_is_left_alone_and_its_prefill_is_paid_only_where_it_is_used() -> None:
    line = Timeline(drafting(), lambda n: DECODE_S, own=lambda rest, levels: [0] * levels)
    line.own_s, line.own_prefill_s, rng = 0.02, 0.05, random.Random(2)
    for _ in range(20):
        line.run(answer(rng, 60))
    begun = line.now
    used = sum(Act.SELF in {each.act for each in line.run(answer(rng, 60))} for _ in range(10))
    assert used <= 5 and line.now - begun < 1.02 * 10 * 60 * DECODE_S


class Fixed(Estimator):
    """A machine whose passes all take a second, and `slope` more for each further token."""

    def __init__(self, slope: float = 0.0) -> None:
        super().__init__(PassCost(slope, 0.0, 0.0, 1.0 - slope))


DRAFT = Tree(1, (5, 6), (-1, 0), (0, 1))


def finish(ledger: Ledger, tree: Tree, accepted: int, position: int = 0, now: float = 0.0) -> None:
    """Let a pass over a chain of the edge, or over nothing, end; no draft is at hand to go on with."""
    act, path = Act.VERIFY if tree.tokens else Act.DECODE, tuple(range(accepted))
    ledger.finish(PassVerdict(act, tree, path, [1] * (accepted + 1), position, has_draft=False, now=now))


def test_it_does_not_wait_without_credit_nor_for_a_draft_it_knows_nothing_of() -> None:
    ledger = Ledger(Costs(Fixed()))
    ledger.begin()
    assert ledger.choose(None, None, 0.0).act is Act.DECODE
    for at in (0.0, 10.0, 15.0):  # two drafts behind a commit teach it a delay of 0.2 s; what it commits is credit
        finish(ledger, DRAFT, 2, position=3, now=at)
        ledger.stats.on_draft(3, usable=True, depth=2, now=at + 0.2)
    ledger.stats.delays.committed(9, has_draft=False, now=20.0)
    wait = ledger.choose(None, None, 20.0)
    assert wait.act is Act.WAIT and 20.2 < wait.until < 20.3
    ledger.wait(20.0)
    assert ledger.choose(None, None, wait.until).act is Act.DECODE  # overdue
    assert ledger.credit(20.1) == pytest.approx(6.0 - 0.1)


def test_a_step_waits_for_its_first_draft_on_credit_that_earlier_steps_have_earned_and_no_longer() -> None:
    ledger = Ledger(Costs(Fixed()))

    def begin(now: float) -> Act:
        """Begin a step, whose prefill commits a token; its first draft comes 0.2 s later."""
        ledger.begin()
        finish(ledger, Tree(), 0, position=1, now=now)
        act = ledger.choose(None, None, now).act
        ledger.stats.on_draft(1, usable=True, depth=2, now=now + 0.2)
        return act

    first = []
    for now in (0.0, 100.0, 200.0):
        first.append(begin(now))
        for _ in range(20):
            finish(ledger, DRAFT, 2)
    assert first == [Act.DECODE, Act.DECODE, Act.WAIT]  # two drafts teach it the delay
    assert begin(300.0) is Act.WAIT and ledger.lent == 1.0
    for _ in range(20):
        finish(ledger, DRAFT, 0)  # nothing is right any more
    assert begin(400.0) is Act.DECODE and ledger.lent == 0.0


def test_only_as_much_of_a_draft_is_verified_as_the_account_allows() -> None:
    ledger = Ledger(Costs(Fixed(0.25)))
    ledger.begin()
    tree = Tree(1, (1, 2, 3), (-1, 0, 1), (0, 1, 2))
    for _ in range(20):  # a draft that is always right
        finish(ledger, tree, 3)
    assert len(ledger.choose(tree, None, 0.0).tree.tokens) == 3
    ledger.begin()
    sizes = []
    while (choice := ledger.choose(tree, None, 0.0)).act is Act.VERIFY:  # none is right any more
        sizes.append(len(choice.tree.tokens))
        finish(ledger, choice.tree, 0)
    # A decode more is lent. The first two cost three quarters of one each, which leaves two tries at a quarter.
    assert sizes == [3, 3, 1, 1] and ledger.lent == 1.0
    finish(ledger, Tree(), 0)
    assert ledger.credit(0.0) == pytest.approx(-2.0)
