"""Edge and link against a real verifier process over real sockets, with the tiny random pair in float64."""

from __future__ import annotations

import json
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from edge_drafter import decoder
from edge_drafter.decoder import EdgeDecoder
from edge_drafter.link import LinkState
from edge_drafter.question import Cancelled, Question, VerifierLost, VerifierRefused
from edge_drafter.settings import EdgeConfig
from spec_vlm_nav.runner import free_address
from speculation.fed.files import CONFIG_FILE, save
from speculation.language.grammar import Grammars, grammar_for
from speculation.language.prompts import VOCABULARY_FILE, Vocabulary, parse_answer
from speculation.language.thinking import CLOSES, OPENS
from speculation.links import Blackout, LinkConditions, WayConditions, load_link
from speculation.profiles import DeviceProfile
from speculation.sampling import GREEDY
from speculation.vlm.load import ModelFolderError, load_vlm
from speculation.vlm.model import Vlm
from speculation.vlm.processing import CHAT_TEMPLATE
from speculation.vlm.session import VlmSession
from tests.cloud_verifier.process import Verifier
from tests.cloud_verifier.test_engine import jpeg
from tests.edge_drafter.conftest import Robot, Serve
from tests.edge_drafter.waiting import wait_for
from tests.models import THINKING_TEMPLATE, tiny_model
from tests.speculation.fed.heads import random_encoder, random_head, tiny_config
from tests.speculation.test_predictor import network

PROMPT = "find the silver bottle"
ANSWER = 20
NO_THINKING = "{# <think> #}"
"""Makes the marks of thinking tokens of a tiny model that does not think."""


def greedy(folder: Path, images: list[bytes], limit: int = ANSWER) -> list[list[int]]:
    """Return the answers of a model alone."""
    session = VlmSession(load_vlm(folder, dtype="float64"), 512)
    return [[token for token, _ in session.greedy(PROMPT, image, limit)] for image in images]


def config(draft: Path, address: str, **changes: object) -> EdgeConfig:
    """Return settings with which a busy machine is not taken for a verifier that is gone."""
    settings = {"dtype": "float64", "max_tokens": ANSWER, "silence_s": 60.0, **changes}
    return EdgeConfig.flat(draft, verifier=address, **settings)


def test_every_mode_gives_the_targets_own_tokens(
    verifier: Verifier, tiny_target: Path, tiny_draft: Path, robot: Robot
) -> None:
    images = [jpeg(seed) for seed in range(2)]
    edge = robot(verifier.address, tiny_draft)
    for image, truth in zip(images, greedy(tiny_target, images), strict=True):
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


def test_what_the_checkpoints_ask_for_is_part_of_every_answer(
    tiny_target: Path, tiny_draft: Path, tmp_path: Path, robot: Robot, serve: Serve
) -> None:
    """Over sockets: the target's penalty in every mode that it verifies, the draft model's own where that is alone; and
    neither where generation is raw."""
    folders = [
        Path(shutil.copytree(each, tmp_path / name)) for each, name in ((tiny_target, "big"), (tiny_draft, "small"))
    ]
    for folder, penalty in zip(folders, (1.3, 1.2), strict=True):
        path = folder / "generation_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"repetition_penalty": penalty}))
    big, small = folders
    image = jpeg(1)
    truth, raw = greedy(big, [image])[0], greedy(tiny_target, [image])[0]
    assert truth != raw, "else it shows nothing"
    server = serve(big, "--draft-model", str(small))
    edge = robot(server.address, small)
    for mode in ("cloud", "sd", "full", "server_sd"):
        assert list(edge.decode(PROMPT, image, 60.0, mode).tokens) == truth, mode
    assert edge.connect(60.0).repetition_penalty == 1.3
    assert list(edge.decode(PROMPT, image, 60.0, "edge").tokens) == greedy(small, [image])[0]
    plain = robot(serve(big, "--generation", "raw").address, small, generation="raw")
    assert list(plain.decode(PROMPT, image, 60.0, "full").tokens) == raw
    assert list(plain.decode(PROMPT, image, 60.0, "edge").tokens) == greedy(tiny_draft, [image])[0]


@pytest.fixture(scope="module")
def minds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A target that thinks, a draft that thinks, and one that does not; the marks are special tokens."""
    folder = tmp_path_factory.mktemp("minds")
    kinds = ((4, THINKING_TEMPLATE), (2, THINKING_TEMPLATE), (2, CHAT_TEMPLATE + NO_THINKING))
    return [
        tiny_model(folder / str(number), layers=layers, template=template, special=True)
        for number, (layers, template) in enumerate(kinds)
    ]


def test_a_target_that_thinks_is_drafted_for_and_its_text_says_what_is_thought(
    minds: list[Path], robot: Robot, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """The verifier says how, whatever the draft model does, and marks are read that the tokenizer calls special."""
    big, thinking, quick = minds
    target = load_vlm(big, dtype="float64")
    grammar = Grammars(target.tokenizer, target.vocabulary).of(grammar_for(PROMPT), target.eos, target.thinking)
    constrained = VlmSession(target, 512).sampled(PROMPT, jpeg(0), 40, GREEDY, grammar=grammar)
    truth = tuple(token for token, _ in constrained)
    server = serve(big)
    for folder in (thinking, quick):
        edge = robot(server.address, folder, answers="constrained", max_tokens=40)
        question, seen = edge.ask(PROMPT, jpeg(0), 60.0), set[str]()
        while not question.done:
            seen.add(question.committed)
            time.sleep(0.01)
        text = question.result().text
        assert text == target.read(truth) and parse_answer(text).action is not None
        assert text.startswith(OPENS) and text.count(CLOSES) == 1
        assert all(text.startswith(each) and (each.startswith(OPENS) or not each) for each in seen)
        swapped = edge.swap_test(PROMPT, text, jpeg(0), jpeg(1))
        assert swapped is not None and 0 < swapped.tokens <= 40
        alone = edge.text(edge.decode(PROMPT, jpeg(0), 60.0, "edge").tokens)
        assert (alone.startswith(OPENS) and CLOSES in alone) == (folder == thinking) and parse_answer(alone).action
    assert "the target thinks before it answers; max_tokens 40 is for both" in caplog.text
    tight = robot(server.address, quick, answers="constrained", max_tokens=grammar.least_tokens - 1)
    with pytest.raises(
        VerifierRefused, match=rf"takes at least {grammar.least_tokens}: raise max_tokens, or take answ"
    ):
        tight.decode(PROMPT, jpeg(0), 60.0)
    free = robot(server.address, thinking, max_tokens=40)
    text = free.text(free.decode(PROMPT, jpeg(1), 60.0).tokens)
    assert text.startswith(OPENS)
    with pytest.raises(ValueError, match="max_tokens is 4; a constrained answer takes at least"):
        robot(server.address, thinking, answers="constrained", max_tokens=4)


# Both sides of `full` read it at the same time, and the first that cannot ends the step.
@pytest.mark.parametrize(
    ("mode", "who"),
    [("cloud", "the verifier refuses"), ("full", "(the edge cannot read the frame|the verifier refuses)")],
)
def test_a_model_that_sees_refuses_an_empty_frame(mode: str, who: str, verifier: Verifier, robot: Robot) -> None:
    with pytest.raises(ValueError, match=f"{who}: image of 0 bytes does not decode"):
        robot(verifier.address).decode(PROMPT, b"", 60.0, mode)


def test_a_predictor_cuts_drafts_short_and_changes_no_answer(
    verifier: Verifier, tiny_target: Path, draft: Vlm, robot: Robot, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replace(network(1, threshold=1.0), draft=draft.fingerprint).save(tmp_path / "doubtful")
    network(1).save(tmp_path / "strange")
    with pytest.raises(ValueError, match="belongs to draft d, the loaded draft is"):
        robot(verifier.address, predictor=str(tmp_path / "strange"))
    (truth,) = greedy(tiny_target, [jpeg(2)])
    drafted = {}
    for choice in ("off", "auto", "doubtful"):
        edge = robot(verifier.address, predictor=str(tmp_path / choice) if choice == "doubtful" else choice)
        result = edge.decode(PROMPT, jpeg(2), 60.0, "sd")
        assert list(result.tokens) == truth
        drafted[choice] = result.stats.drafted, result.stats.rounds
    tokens, rounds = drafted["doubtful"]
    assert rounds - 2 <= tokens <= rounds, "one a round, but for a last one without room and a prefill that was sooner"
    # How much of a first draft a prefill overtakes is a matter of time.
    assert all(tokens > rounds + 1 for tokens, rounds in (drafted["off"], drafted["auto"]))
    assert "trained for target t" in caplog.text


def test_the_target_says_which_objects_are_known(
    verifier: Verifier, tiny_target: Path, draft: Vlm, robot: Robot, serve: Serve, tmp_path: Path
) -> None:
    """Not the draft: an embedded draft's list says nothing about what a large target was trained on."""
    own = Vocabulary(("grey",), ("mouse",))
    small, large = tmp_path / "small", tmp_path / "large"
    shutil.copytree(draft.folder, small)
    own.save(small)
    shutil.copytree(tiny_target, large)
    (large / VOCABULARY_FILE).unlink()
    known, anything = robot(verifier.address, small), robot(serve(large).address, small)
    assert known.objects(20.0) == Vocabulary.load(tiny_target) is not None
    assert anything.objects(20.0) is None
    assert anything.objects(0.0, mode="edge") == own, "who answers, decides"
    assert robot(verifier.address, small, mode="edge").objects(0.0) == own
    with pytest.raises(VerifierLost, match="127.0.0.1:1"):
        robot("tcp://127.0.0.1:1").objects(0.0)


def cut_short(edge: EdgeDecoder, server: Verifier) -> Question:
    """Ask until a part of the answer has come and no more, and kill the verifier, of which silence is noticed."""
    while True:
        question = edge.ask(PROMPT, jpeg(1), 600.0, "cloud")
        wait_for(lambda question=question: question.committed != "")  # type: ignore[misc]
        server.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: edge.link is not None and edge.link.state is LinkState.SILENT)
        if not question.done:
            server.stop(signal.SIGKILL)
            return question
        server.process.send_signal(signal.SIGCONT)


def test_a_killed_verifier_costs_time_and_not_the_answer(tiny_target: Path, robot: Robot, serve: Serve) -> None:
    """Killed in the middle of an answer and started again: the answer goes on. Killed for good: a sentence says so, and
    a cancel ends the wait to take up the answer."""
    address = free_address()
    # The profile's 62 ms a token leave a second between the first commit and the last.
    flags = ("--bind", address, "--profile", "go2_a100_scaled")
    first = serve(tiny_target, *flags)
    edge = robot(address, profile="go2_a100_scaled", resume_s=60.0, silence_s=1.0)
    truth = greedy(tiny_target, [jpeg(1)])[0]
    question = cut_short(edge, first)
    second = serve(tiny_target, *flags)
    reply = question.result()
    stats = reply.stats
    assert reply.text == edge.text(tuple(truth))
    assert stats.interruptions >= 1 and stats.tokens == len(truth)
    assert stats.first_commit_s is not None and stats.first_commit_s < stats.total_s
    question = cut_short(edge, second)
    question.cancel()
    with pytest.raises(Cancelled):
        question.result()
    assert question.committed and edge.text(tuple(truth)).startswith(question.committed)
    with pytest.raises(VerifierLost, match="nothing received from the verifier at tcp://127"):
        edge.decode(PROMPT, jpeg(1), 0.1)


def test_a_target_that_thinks_otherwise_does_not_go_on_with_an_answer(
    minds: list[Path], robot: Robot, serve: Serve
) -> None:
    """The committed tokens are thinking that the first prompt began; to the second target they would be an answer."""
    thinks, _, quick = minds
    flags = ("--bind", free_address(), "--profile", "go2_a100_scaled")
    first = serve(thinks, *flags)
    edge = robot(flags[1], quick, profile="go2_a100_scaled", resume_s=60.0, silence_s=1.0, max_tokens=40)
    question = cut_short(edge, first)
    assert question.committed.startswith(OPENS)
    serve(quick, *flags)
    with pytest.raises(VerifierLost, match="marks its thinking otherwise than the one that began it.*; ask again"):
        question.result()
    assert question.committed.startswith(OPENS)
    answer = edge.decode(PROMPT, jpeg(1), 60.0)
    assert list(answer.tokens) == greedy(quick, [jpeg(1)], 40)[0]


def test_an_answer_survives_blackouts_longer_than_the_silence(
    tiny_target: Path, robot: Robot, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The declared 62 ms a token do not fit between two blackouts, so that the step must be taken up again."""
    dark = WayConditions(blackouts=(Blackout(0.3, 1.0, 1.8),))
    server = serve(tiny_target, "--profile", "go2_a100_scaled")
    monkeypatch.setattr(decoder, "load_link", lambda name: LinkConditions(name, dark, dark))
    edge = robot(server.address, profile="go2_a100_scaled", resume_s=60.0, silence_s=0.4)
    result = edge.decode(PROMPT, jpeg(1), 100.0, "cloud")
    assert list(result.tokens) == greedy(tiny_target, [jpeg(1)])[0]
    assert result.stats.interruptions >= 1


def test_a_link_is_named_and_its_delays_are_added(verifier: Verifier, robot: Robot) -> None:
    edge = robot(verifier.address, link="lte", profile="go2_a100_scaled", rtt_s=0.01, extra_rtt_s=0.02)
    conditions, lte = edge.conditions, load_link("lte")
    assert conditions.up.delay_s == pytest.approx(lte.up.delay_s + 0.015)
    assert conditions.down.rate_bps == lte.down.rate_bps and edge.declared == "go2_a100_scaled over lte"
    with pytest.raises(ValueError, match="unknown link 'string'; links.json has wifi"):
        robot(verifier.address, link="string")


# --- with a fed head


@pytest.fixture(scope="module")
def fed_head(target: Vlm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = tiny_config(
        target=target.fingerprint, tokenizer=target.tokenizer_fingerprint, vocabulary=target.vocabulary,
        hidden=target.hidden_size, short_list=tuple(range(target.vocabulary)),
    )  # fmt: skip
    path = Path(tmp_path_factory.mktemp("fed"))
    save(path, random_encoder(shape), random_head(shape, scale=2.0))
    return path


def test_a_fed_robot_gets_the_targets_own_tokens(
    fed_head: Path, tiny_target: Path, tiny_draft: Path, robot: Robot, serve: Serve, tmp_path: Path
) -> None:
    """In modes that it drafts in and in others; without a verifier the draft model answers alone. Other features than
    the verifier's are refused."""
    server = serve(tiny_target, "--fed-head", str(fed_head))
    edge = robot(server.address, fed_head=str(fed_head))
    results = {mode: edge.decode(PROMPT, jpeg(0), 60.0, mode) for mode in ("full", "sd", "cloud", "edge")}
    shutil.copytree(fed_head, tmp_path / "other")
    other = json.loads((fed_head / CONFIG_FILE).read_text()) | {"features": "0" * 16}
    (tmp_path / "other" / CONFIG_FILE).write_text(json.dumps(other))
    with pytest.raises(VerifierRefused, match="Hello.features '0000000000000000': this verifier has "):
        robot(server.address, fed_head=str(tmp_path / "other")).connect(20.0)
    (truth,) = greedy(tiny_target, [jpeg(0)])
    for mode in ("full", "sd", "cloud"):
        assert list(results[mode].tokens) == truth, mode
    assert list(results["edge"].tokens) == greedy(tiny_draft, [jpeg(0)])[0]
    assert results["sd"].stats.drafted > 0 and results["sd"].stats.resent == 0


def test_what_does_not_fit_is_refused_before_anything_connects(
    fed_head: Path, tiny_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "tcp://127.0.0.1:5999"
    with pytest.raises(ModelFolderError, match="has no fed_head.json"):
        EdgeDecoder(config(tiny_draft, address, fed_head=str(tmp_path)))
    monkeypatch.setattr(decoder, "load_profile", lambda name: DeviceProfile("slow", draft_s=0.07))
    with pytest.raises(ValueError, match="profile slow declares draft_s and no fed_s"):
        EdgeDecoder(config(tiny_draft, address, fed_head=str(fed_head)))
    monkeypatch.undo()
    stranger = tiny_model(tmp_path / "stranger", layers=1, vocabulary=300)
    with pytest.raises(ModelFolderError, match="target and draft model must share one"):
        EdgeDecoder(config(stranger, address, fed_head=str(fed_head)))
