"""Virtual time: exact, deterministic, and equal to closed forms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter import Mode
from speculation.pass_cost import Load
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.virtual_time import (
    PAPERS,
    SERVER,
    Recording,
    Synthetic,
    Timings,
    decode,
    drafting,
    figures_of,
    load_timings,
    run_arms,
    run_mode,
)

GO2 = Timings("go2", 0.072, 0.0, 0.62, one_way_s=0.12)
LINKED = [mode for mode in Mode if mode is not Mode.EDGE]


GO2_RUN = Synthetic(tokens=200, acceptance=0.727, miss=0.556, mean_exit=8.0, layers=28)


def cloud_s(timings: Timings, tokens: int) -> float:
    """Early Exits, Table 4: one way up, a forward a token, one way down."""
    return 2.0 * timings.one_way_s + tokens * timings.verify_s


def answers(recording: Recording) -> list[tuple[int, ...]]:
    return [step.tokens for step in recording.steps]


def test_cloud_takes_what_its_formula_says() -> None:
    recording = Synthetic(tokens=30).draw(2)
    timings = replace(GO2, cloud_prefill_s=0.3, verify_token_s=0.01)
    for result in decode(recording, timings, drafting("cloud", recording)):
        assert result.stats.total_s == pytest.approx(0.3 + cloud_s(timings, 29), abs=1e-9)
        assert result.stats.cloud_passes == 30


def sd_by_hand(recording: Recording, index: int, gamma: int, timings: Timings) -> float:
    """Walk the answer behind the prefill's own token: every round drafts, goes up, is verified, and comes down."""
    step = recording.steps[index]
    n, place, seconds = len(step.tokens), 1, 0.0
    while place < n:
        drafted = min(gamma, n - place - 1)
        right = [int(step.draft_tokens[at, 0]) == step.tokens[at] for at in range(place, place + drafted)]
        tokens = 1 + drafted
        seconds += drafted * timings.draft_s + timings.target_forward_s(Load(1, tokens)) + 2 * timings.one_way_s
        place += (right.index(False) if False in right else drafted) + 1
    return seconds


@pytest.mark.parametrize("gamma", [1, 4])
def test_sd_takes_what_drafting_sending_and_verifying_take(gamma: int) -> None:
    recording = Synthetic(tokens=40, seed=gamma).draw(2)
    timings = replace(GO2, verify_token_s=0.004, edge_prefill_s=0.3)
    results = decode(recording, timings, drafting("sd", recording, gamma=gamma))
    assert timings.edge_prefill_s > 2 * timings.one_way_s, "the edge knows the first token before it drafts"
    for index, result in enumerate(results):
        assert result.stats.total_s == pytest.approx(0.3 + sd_by_hand(recording, index, gamma, timings), abs=1e-9)


@pytest.mark.parametrize("gamma", [1, 4])
def test_server_sd_takes_what_drafting_and_verifying_take_and_one_round_trip(gamma: int) -> None:
    """The cloud goes on at once after each commit, so the link is paid once a step, not once a round."""
    recording = Synthetic(tokens=40, seed=gamma).draw(2)
    timings = replace(GO2, verify_token_s=0.004, server_draft_s=0.011, server_draft_prefill_s=0.2, cloud_prefill_s=0.3)
    alone = replace(timings, draft_s=0.011, one_way_s=0.0)
    results = decode(recording, timings, drafting("server_sd", recording, gamma=gamma, draft_tokens=0))
    assert [result.tokens for result in results] == answers(recording)
    for index, result in enumerate(results):
        expected = 0.5 + 2 * timings.one_way_s + sd_by_hand(recording, index, gamma, alone)
        assert result.stats.total_s == pytest.approx(expected, abs=1e-9)
        assert result.stats.draft_forwards == 0 and result.stats.cloud_passes < 40


@pytest.mark.parametrize(("one_way_s", "useless"), [(0.0, True), (0.0, False), (0.2, False)])
def test_full_beside_a_draft_model_keeps_up_with_server_sd_at_its_best(one_way_s: float, useless: bool) -> None:
    """At SpecEdge's times, whatever the edge's drafts are worth, and with an edge that drafts ahead without the model.

    The best depth is searched on the very answers that are compared, and the ledger has to learn its own meanwhile.
    """
    recording = Synthetic(tokens=100, second=0.4, sharpness=0.7, seed=4).draw(4)
    own = replace(recording, steps=tuple(replace(s, draft_tokens=s.draft_tokens + 1) for s in recording.steps))
    timings = Timings("specedge", 0.011, 0.0, 0.0942, one_way_s=one_way_s, server_draft_s=0.011)

    edge = own if useless else recording

    def seconds(mode: str, **given: Any) -> float:
        answered = run_mode(mode, edge if mode == "full" else recording, timings, **given)
        return sum(each.stats.total_s for each in answered)

    best = min(seconds("server_sd", gamma=depth) for depth in (4, 5, 6))
    beside = SERVER.changed(draft_model=Path("beside"))
    full = seconds("full", server=beside, beside=recording)
    assert full < best
    if not useless:
        without = seconds("full")
        # Without a link the edge's drafts cost the verifier nothing, and the ledger still makes some of its own.
        assert full < without / 0.88
        assert (without > 1.2 * best) is (one_way_s > 0.0)


@pytest.mark.parametrize(
    ("edges", "acceptance", "times", "passes"),
    [(1, 0.82, (0.0244, 0.0, 0.072, 0.0239), 1.5), (4, 0.93, (0.0072, 0.0, 0.062, 0.002), 0.9)],
)
def test_a_draft_that_grows_on_the_verifier_saves_a_lone_robot_time_and_a_shared_verifier_passes(
    edges: int, acceptance: float, times: tuple[float, float, float, float], passes: float
) -> None:
    """PicoSpec's PreVerify: at its times (Qwen3 0.6B/32B) a pass begins early, among other robots a draft grows on."""
    recording = Synthetic(tokens=60, acceptance=acceptance).draw(4)
    draft_s, leaf, verify_s, one_way_s = times
    timings = Timings("growing", draft_s, leaf, verify_s, one_way_s=one_way_s)

    def spent(preverify: bool) -> tuple[float, int]:
        results = decode(recording, timings, drafting("pipelined", recording, preverify=preverify), edges=edges)
        assert [result.tokens for result in results] == answers(recording)
        return sum(each.stats.total_s for each in results), sum(each.stats.cloud_passes for each in results)

    (grown_s, grown), (whole_s, whole) = spent(True), spent(False)
    assert grown_s < 0.98 * whole_s and grown < passes * whole


@pytest.mark.parametrize("chunk", [10, 300])
def test_prefills_in_chunks_change_times_alone(chunk: int) -> None:
    """A robot alone takes as long for its prompt in chunks as for all of it."""
    recording = Synthetic(tokens=40).draw(4)
    timings = replace(GO2, verify_s=0.1, cloud_prefill_s=3.0, prompt_tokens=301)
    server = SERVER.changed(prefill_chunk=chunk)
    for edges in (1, 3):
        results = decode(recording, timings, drafting("full", recording), edges=edges, server=server)
        assert [result.tokens for result in results] == answers(recording)
    alone = decode(recording, timings, drafting("cloud", recording), server=server)
    assert [each.stats.total_s for each in alone] == pytest.approx([3.0 * 301 / 300 + cloud_s(timings, 39)] * 4)


times = st.floats(0.0, 0.3)


@settings(max_examples=30, deadline=None)
@given(
    mode=st.sampled_from(LINKED),
    gamma=st.sampled_from([0, 1, 3, 5, "auto"]),
    source=st.builds(
        Synthetic,
        tokens=st.integers(1, 40),
        acceptance=st.floats(0.0, 1.0),
        second=st.floats(0.0, 1.0),
        miss=st.floats(0.0, 1.0),
        mean_exit=st.just(2.0),
        layers=st.just(6),
        exits=st.sampled_from([(), (1, 2, 4)]),
        sharpness=st.floats(0.5, 1.0),
        exit_sharpness=st.floats(0.5, 1.0),
        image_bytes=st.integers(1, 3000),
        seed=st.integers(0, 1000),
    ),
    timings=st.builds(
        Timings,
        draft_s=times,
        draft_leaf=st.floats(0.0, 1.0),
        verify_s=times,
        verify_token_s=st.floats(0.0, 0.05),
        edge_prefill_s=times,
        cloud_prefill_s=times,
        one_way_s=times,
        up_bits_per_s=st.sampled_from([0.0, 2e4, 1e7]),
        down_bits_per_s=st.sampled_from([0.0, 2e4, 1e7]),
    ),
    edges=st.integers(1, 3),
)
def test_every_mode_answers_as_the_target(
    mode: Mode, gamma: int | str, source: Synthetic, timings: Timings, edges: int
) -> None:
    recording = source.draw(3)
    config = drafting(mode, recording, gamma=gamma, stop_below=0.2)
    results = decode(recording, timings, config, edges=edges)
    assert [result.tokens for result in results] == answers(recording)


def test_sd_and_fsd_keep_to_the_papers_formula_at_the_go2s_times() -> None:
    """Early Exits, Table 4, at Table 8's times: 1.58x and 1.13x, each within 3 %."""
    timings = replace(PAPERS["go2"], draft_leaf=0.0)
    found = figures_of(
        run_arms([Arm(mode, mode) for mode in ("cloud", "sd", "fsd")], GO2_RUN.draw(4), timings), timings
    )
    mean = {mode: entry["total_percentiles_s"]["mean"] for mode, entry in found.items()}
    rounds, drafting_s, way_s = 200 / 2.92, 4 * timings.draft_s, 2.0 * timings.one_way_s
    cloud, sd = way_s + 200 * timings.verify_s, rounds * (way_s + drafting_s + timings.verify_s)
    fsd = rounds * (way_s + 0.5563 * drafting_s + timings.verify_s)
    assert (cloud / sd, sd / fsd) == pytest.approx((1.58, 1.13), abs=0.005)
    assert mean["cloud"] / mean["sd"] == pytest.approx(cloud / sd, rel=0.03)
    assert mean["sd"] / mean["fsd"] == pytest.approx(sd / fsd, rel=0.03)
    assert found["fsd"]["miss_rate"] == pytest.approx(0.556, abs=0.04)
    assert found["fsd"]["mean_exit"] == pytest.approx(8.0, abs=0.4)
    # A round of sd is four draft forwards, two ways and a pass.
    assert found["sd"]["target_busy"] == pytest.approx(0.62 / (4 * 0.072 + 0.24 + 0.62), rel=0.02)


@pytest.mark.parametrize("mode", ["cloud", "full"])
def test_on_virtual_time_the_last_token_comes_with_the_answer(mode: str) -> None:
    recording = Synthetic(tokens=20).draw(2)
    run = run_arms([Arm(mode, mode)], recording, load_timings("go2"), with_arrivals=True)
    for result in run.answers[mode]:
        came = result.more["arrivals"]
        assert sum(count for _, count in came) == len(result.tokens)
        assert came[-1][0] == pytest.approx(result.stats.total_s)
        assert came[0][0] == pytest.approx(result.stats.first_commit_s)
