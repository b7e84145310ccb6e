"""Edge and link against a real verifier process over real sockets, with the tiny random pair in float64."""

from __future__ import annotations

import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edge_drafter import StepResult
from edge_drafter.decoder import EdgeDecoder
from edge_drafter.link import LinkState
from edge_drafter.reply import VerifierLost
from edge_drafter.settings import EdgeConfig
from speculation.exits import ExitHeads, Reliability
from speculation.language.prompts import VOCABULARY_FILE, Vocabulary
from speculation.links import Blackout, LinkConditions, WayConditions, load_link
from speculation.sampling import Coupled, question_key
from speculation.vlm.load import Vlm, load_vlm
from speculation.vlm.session import VlmSession
from tests.cloud_verifier.process import Verifier, start
from tests.cloud_verifier.test_engine import jpeg
from tests.models import tiny_model, tiny_text_model
from tests.speculation.test_predictor import network

PROMPT = "find the silver bottle"
ANSWER = 20


def wait_for(condition: object, seconds: float = 20.0) -> None:
    """Wait until `condition()` holds."""
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def greedy(folder: Path, images: list[bytes]) -> list[list[int]]:
    """Return the answers of a model alone."""
    session = VlmSession(load_vlm(folder, dtype="float64"), 512)
    return [[token for token, _ in session.greedy(PROMPT, image, ANSWER)] for image in images]


def config(draft: Path, address: str, **changes: object) -> EdgeConfig:
    settings = {"dtype": "float64", "max_tokens": ANSWER, "silence_s": 1.5, **changes}
    return EdgeConfig.flat(draft, verifier=address, **settings)


@pytest.fixture(scope="module")
def exits(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained exits of the tiny target: wrong often enough to matter, and they stream."""
    folder = Path(tmp_path_factory.mktemp("edge-exits"))
    heads = ExitHeads(load_vlm(tiny_target), (1, 2), 4)
    heads.set_reliability({layer: Reliability((0.0, 1.0), (0.5,)) for layer in (1, 2)})
    heads.save(folder)
    return folder


@pytest.fixture(scope="module")
def verifier(tiny_target: Path, exits: Path) -> Iterator[Verifier]:
    running = start(tiny_target, "--dtype", "float64", "--exits", str(exits))
    yield running
    running.stop()


def test_every_mode_gives_the_targets_own_tokens(verifier: Verifier, tiny_target: Path, tiny_draft: Path) -> None:
    images = [jpeg(seed) for seed in range(3)]
    truths = greedy(tiny_target, images)
    edge = EdgeDecoder(config(tiny_draft, verifier.address))
    try:
        assert edge.link is not None
        assert edge.link.wait_nominal(20.0)
        for image, truth in zip(images, truths, strict=True):
            results = {mode: edge.decode(PROMPT, image, 60.0, mode) for mode in ("cloud", "sd", "fsd")}
            for mode, result in results.items():
                assert list(result.tokens) == truth, mode
                assert result.stats.mode == mode
                assert result.stats.tokens == len(truth)
            assert results["cloud"].stats.cloud_passes == len(truth)
            assert results["sd"].stats.cloud_passes <= len(truth)
            assert results["sd"].stats.hits == 0
        alone = edge.decode(PROMPT, images[0], 60.0, "edge")
        assert list(alone.tokens) == greedy(tiny_draft, images[:1])[0]
    finally:
        edge.close()


def test_a_verifier_with_a_draft_model_of_its_own_needs_no_draft(
    verifier: Verifier, tiny_target: Path, tiny_draft: Path, draft: Vlm
) -> None:
    """Mode server_sd: the target's own tokens, in fewer target forwards than tokens; without the model a sentence."""
    images = [jpeg(seed) for seed in range(3)]
    server = start(tiny_target, "--dtype", "float64", "--draft-model", str(tiny_draft))
    edge = EdgeDecoder(config(tiny_draft, server.address, mode="server_sd", resume_s=20.0), vlm=draft)
    try:
        results = [edge.decode(PROMPT, image, 60.0) for image in images]
        plain = edge.decode(PROMPT, images[0], 60.0, "cloud")
    finally:
        edge.close()
        server.stop()
    truths = greedy(tiny_target, images)
    assert [list(result.tokens) for result in results] == truths and list(plain.tokens) == truths[0]
    assert sum(result.stats.cloud_passes for result in results) < sum(map(len, truths))
    assert all(result.stats.draft_forwards == result.stats.drafted == 0 for result in results)
    assert any("drafts beside the target" in line for line in server.log)
    without = EdgeDecoder(config(tiny_draft, verifier.address, mode="server_sd", resume_s=20.0), vlm=draft)
    try:
        with pytest.raises(VerifierLost, match="start it with --draft-model FOLDER"):
            without.decode(PROMPT, images[0], 60.0)
    finally:
        without.close()


def test_a_text_pair_is_asked_in_words(tmp_path: Path, tiny_draft: Path) -> None:
    """Without a frame, over the same sockets: a language model's own answers in every mode; a frame is refused."""
    big, small = (tiny_text_model(tmp_path / name, layers=count) for name, count in (("big", 3), ("small", 2)))
    prompts = ("find the silver bottle", "I see the red chair ahead, on the left.")
    session = VlmSession(load_vlm(big, dtype="float64"), 512)
    truths = [[token for token, _ in session.greedy(prompt, None, ANSWER)] for prompt in prompts]
    server = start(big, "--dtype", "float64", "--text-only", "--draft-model", str(small))
    edge = EdgeDecoder(config(small, server.address, text_only=True, resume_s=20.0))
    try:
        for prompt, truth in zip(prompts, truths, strict=True):
            for mode in ("cloud", "sd", "fsd", "full", "server_sd"):
                assert list(edge.decode(prompt, b"", 60.0, mode).tokens) == truth, mode
        for mode in ("cloud", "sd"):
            with pytest.raises(ValueError, match="sees no images; give it none"):
                edge.decode(prompts[0], jpeg(0), 60.0, mode)
        assert list(edge.decode(prompts[1], b"", 60.0, "sd").tokens) == truths[1]
    finally:
        edge.close()
        server.stop()
    with pytest.raises(ValueError, match="sees images, text_only wants a language model alone"):
        EdgeDecoder(config(tiny_draft, server.address, text_only=True))


def test_a_model_that_sees_refuses_an_empty_frame(verifier: Verifier, tiny_draft: Path, draft: Vlm) -> None:
    edge = EdgeDecoder(config(tiny_draft, verifier.address, resume_s=20.0), vlm=draft)
    try:
        # Both sides of `full` read it at the same time, and the first that cannot ends the step.
        for mode, who in (
            ("cloud", "the verifier refuses"),
            ("full", "(the edge cannot read the frame|the verifier refuses)"),
        ):
            with pytest.raises(ValueError, match=f"{who}: image of 0 bytes does not decode"):
                edge.decode(PROMPT, b"", 60.0, mode)
    finally:
        edge.close()


def test_a_predictor_cuts_drafts_short_and_changes_no_answer(
    verifier: Verifier,
    tiny_target: Path,
    tiny_draft: Path,
    draft: Vlm,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    replace(network(1, threshold=1.0), draft=draft.fingerprint).save(tmp_path / "doubtful")
    network(1).save(tmp_path / "strange")
    image = jpeg(2)
    (truth,) = greedy(tiny_target, [image])
    with pytest.raises(ValueError, match="belongs to draft d, the loaded draft is"):
        EdgeDecoder(config(tiny_draft, verifier.address, predictor=str(tmp_path / "strange")), vlm=draft)
    drafted = {}
    for choice in ("off", "auto", str(tmp_path / "doubtful")):
        edge = EdgeDecoder(config(tiny_draft, verifier.address, predictor=choice), vlm=draft)
        try:
            assert edge.link is not None
            assert edge.link.wait_nominal(20.0)
            result = edge.decode(PROMPT, image, 60.0, "sd")
            assert list(result.tokens) == truth
            drafted[choice] = result.stats.drafted, result.stats.rounds
        finally:
            edge.close()
    tokens, rounds = drafted.pop(str(tmp_path / "doubtful"))
    assert rounds - 1 <= tokens <= rounds, "one token a round, but for a last one without room"
    assert drafted["off"] == drafted["auto"] and drafted["off"][0] > drafted["off"][1]
    assert "trained for target t" in caplog.text


def test_a_predictor_beside_a_draft_named_by_its_hub_name_is_found(hub: Path, target: Vlm) -> None:
    replace(network(1), draft=target.fingerprint).save(hub)
    edge = EdgeDecoder(config(Path("me/tiny"), "tcp://127.0.0.1:1", mode="edge"))
    assert edge.predictor is not None
    assert EdgeDecoder(config(Path("me/tiny"), "tcp://127.0.0.1:1", mode="edge", predictor="off")).predictor is None


def test_the_target_says_which_objects_are_known(
    verifier: Verifier, tiny_target: Path, draft: Vlm, tmp_path: Path
) -> None:
    """Not the draft: an embedded draft's list says nothing about what a large target was trained on."""
    known = Vocabulary.load(tiny_target)
    assert known is not None
    small = tmp_path / "small"
    shutil.copytree(draft.folder, small)
    Vocabulary(("grey",), ("mouse",)).save(small)
    large = tmp_path / "large"
    shutil.copytree(tiny_target, large)
    (large / VOCABULARY_FILE).unlink()
    server = start(large, "--dtype", "float64")
    edges = {
        name: EdgeDecoder(config(small, address, mode=mode, resume_s=20.0))
        for name, address, mode in (
            ("listed", verifier.address, "full"), ("any", server.address, "full"), ("alone", verifier.address, "edge"),
        )
    }  # fmt: skip
    lost = EdgeDecoder(config(small, "tcp://127.0.0.1:1", resume_s=20.0))
    try:
        assert edges["listed"].objects(20.0) == known
        assert edges["any"].objects(20.0) is None
        assert edges["alone"].objects(0.0) == Vocabulary(("grey",), ("mouse",))
        assert edges["any"].objects(0.0, mode="edge") == Vocabulary(("grey",), ("mouse",)), "who answers, decides"
        with pytest.raises(VerifierLost, match="127.0.0.1:1"):
            lost.objects(0.0)
    finally:
        for edge in (*edges.values(), lost):
            edge.close()
        server.stop()


def test_sampled_answers_are_the_target_s_own_draws(verifier: Verifier, tiny_target: Path, draft: Vlm) -> None:
    """Over sockets, in every mode: the n-th question's key is a hash of seed and n."""
    session = VlmSession(load_vlm(tiny_target, dtype="float64"), 512)
    how = Coupled(0.7, 50, 0.95)
    edge = EdgeDecoder(config(Path(), verifier.address, sampling=how.text, seed=5), vlm=draft)
    try:
        assert edge.link is not None and edge.link.wait_nominal(20.0)
        for number, mode in enumerate(("cloud", "sd", "fsd", "full")):
            truth = session.sampled(PROMPT, jpeg(number % 2), ANSWER, how, question_key(5, number))
            found = edge.decode(PROMPT, jpeg(number % 2), 60.0, mode).tokens
            assert found == tuple(token for token, _ in truth)
        alone = edge.decode(PROMPT, jpeg(0), 60.0, "edge").tokens
    finally:
        edge.close()
    own = VlmSession(draft, 512).sampled(PROMPT, jpeg(0), ANSWER, how, question_key(5, 4))
    assert alone == tuple(token for token, _ in own)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"sampling": "hot"}, "sampling 'hot' is unknown"), ({"seed": -1}, "seed -1 is outside 0 to 9223372036854775807")],
)
def test_sampling_that_cannot_be_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        config(Path(), "", **changes)


def test_a_rounded_draft_of_another_padding_changes_no_token(
    verifier: Verifier, tiny_target: Path, tmp_path: Path
) -> None:
    """As a quantised Qwen2-VL 2B drafts for the 7B, whose embedding has other rows."""
    pytest.importorskip("bitsandbytes")
    draft = tiny_model(tmp_path / "draft", layers=2, padding=256)
    edge = EdgeDecoder(config(draft, verifier.address, dtype="float32", quantisation="nf4"))
    try:
        assert edge.link is not None
        assert edge.link.wait_nominal(20.0)
        assert edge.vlm.quantisation == "nf4"
        result = edge.decode(PROMPT, jpeg(0), 60.0, "sd")
    finally:
        edge.close()
    assert list(result.tokens) == greedy(tiny_target, [jpeg(0)])[0]
    assert result.stats.drafted > 0


def test_a_draft_that_sees_nothing_is_refused(tmp_path: Path) -> None:
    blind = tiny_text_model(tmp_path / "blind", layers=1)
    with pytest.raises(ValueError, match="draft model blind is a language model alone; choose one that sees"):
        EdgeDecoder(EdgeConfig.flat(blind, mode="edge"))


def test_a_killed_verifier_costs_time_and_not_the_answer(tiny_target: Path, tiny_draft: Path) -> None:
    """Killed in the middle of an answer and started again: the answer goes on. Killed for good: a sentence says so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    # The profile's 62 ms a token leave a second between the first commit and the last.
    flags = ("--dtype", "float64", "--bind", address, "--profile", "go2_a100_scaled")
    first = start(tiny_target, *flags)
    edge = EdgeDecoder(config(tiny_draft, address, profile="go2_a100_scaled", resume_s=60.0))
    image = jpeg(1)
    truth = greedy(tiny_target, [image])[0]
    results: list[StepResult] = []
    link = edge.link
    assert link is not None
    try:
        assert link.wait_nominal(20.0)
        thinking = threading.Thread(target=lambda: results.append(edge.decode(PROMPT, image, 120.0, "cloud")))
        thinking.start()
        wait_for(lambda: link.bytes_down > 0)
        first.stop(signal.SIGKILL)
        second = start(tiny_target, *flags)
        thinking.join(60.0)
        assert list(results[0].tokens) == truth
        stats = results[0].stats
        assert stats.interruptions == 1 and stats.tokens == len(truth)
        assert stats.first_commit_s is not None and stats.first_commit_s < stats.total_s
        assert edge.answer(PROMPT, image, 60.0).text == edge.text(tuple(truth))
        second.stop(signal.SIGKILL)
        edge.config = edge.config.changed(resume_s=0.1)
        with pytest.raises(VerifierLost, match="nothing received from the verifier at tcp://127"):
            edge.answer(PROMPT, image, 60.0)
        assert link.state is not LinkState.NOMINAL
    finally:
        edge.close()


def test_an_answer_survives_blackouts_longer_than_the_silence(tiny_target: Path, tiny_draft: Path) -> None:
    """The declared 62 ms a token do not fit between two blackouts, so that the step must be taken up again."""
    dark = WayConditions(blackouts=(Blackout(0.3, 1.0, 1.8),))
    server = start(tiny_target, "--dtype", "float64", "--profile", "go2_a100_scaled")
    settings = config(tiny_draft, server.address, profile="go2_a100_scaled", resume_s=60.0, silence_s=0.4)
    edge = EdgeDecoder(settings, conditions=LinkConditions("dark", dark, dark))
    image = jpeg(1)
    try:
        result = edge.decode(PROMPT, image, 100.0, "cloud")
    finally:
        edge.close()
        server.stop()
    assert list(result.tokens) == greedy(tiny_target, [image])[0]
    assert result.stats.interruptions >= 1


def test_a_link_is_named_and_its_delays_are_added(verifier: Verifier, draft: Vlm, tiny_draft: Path) -> None:
    edge = EdgeDecoder(
        config(tiny_draft, verifier.address, link="lte", profile="go2_a100_scaled", rtt_s=0.01, extra_rtt_s=0.02),
        vlm=draft,
    )
    try:
        conditions, lte = edge.conditions, load_link("lte")
        assert conditions.up.delay_s == pytest.approx(lte.up.delay_s + 0.015)
        assert conditions.down.rate_bps == lte.down.rate_bps and edge.declared == "go2_a100_scaled over lte"
    finally:
        edge.close()
    for changes, sentence in (
        ({"link": "string"}, "unknown link 'string'; links.json has wifi"),
        ({"rtt_s": -1.0}, "rtt_s -1.0 is outside 0 to 10"),
    ):
        with pytest.raises(ValueError, match=sentence):
            EdgeDecoder(config(tiny_draft, verifier.address, **changes), vlm=draft)


def test_a_verifier_elsewhere_needs_keys_or_permission_before_any_model_is_loaded(tmp_path: Path) -> None:
    address = "tcp://10.0.0.5:5555"
    with pytest.raises(ValueError, match=r"verifier tcp://10\.0\.0\.5:5555 .*allow_plain"):
        EdgeConfig.flat(tmp_path, verifier=address)
    for trusted in ({"allow_plain": True}, {"keys": "keys"}, {"mode": "edge"}):
        assert EdgeConfig.flat(tmp_path, verifier=address, **trusted).connection.verifier == address
