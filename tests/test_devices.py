"""A target and a draft model that are spread over devices answer token for token as they do on one, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_fields

from edge_drafter import DraftingConfig, Mode, StepRequest
from speculation.exits import Head, Reliability
from speculation.fed.files import fingerprint
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from speculation.wire import Welcome
from tests import devices
from tests.cloud_verifier.process import Robot as Raw
from tests.cloud_verifier.process import answer_by_drafts, make_target, start
from tests.cloud_verifier.test_engine import PROMPTS, jpeg
from tests.edge_drafter.fakes import Weather
from tests.pair import Robot, run
from tests.speculation.fed.heads import random_encoder, random_head, tiny_config
from tests.test_exactness import HOW, LINKED, alone, noisy_exits

WEATHER = Weather(one_way_s=0.02, jitter_s=0.1, duplicates=0.1, seed=3)


@pytest.fixture(scope="module")
def spread(tiny_target: Path) -> Vlm:
    """The target with two layers on each of two devices."""
    return load_vlm(tiny_target, dtype="float64", device="lazy:0,lazy:1", load_check=False)


@pytest.fixture(scope="module")
def beside(tiny_draft: Path) -> Vlm:
    """The draft model with a layer on each of them."""
    return load_vlm(tiny_draft, dtype="float64", device="lazy:0,lazy:1", load_check=False)


def request(target: Vlm, number: int) -> StepRequest:
    return StepRequest(1, PROMPTS[number % 3], jpeg(number), target.eos, 10, sampling=HOW[number % 4], key=number)


@contextmanager
def passes_between_devices() -> Iterator[None]:
    """Fail where nothing went from the first device to the second."""
    devices.copies.clear()
    yield
    assert any((source.index, target.index) == (0, 1) for source, target in devices.copies)


@pytest.mark.parametrize("mode", LINKED)
def test_a_mode_answers_as_the_target_on_one_device(
    mode: Mode, target: Vlm, draft: Vlm, spread: Vlm, beside: Vlm
) -> None:
    """Exits after every layer; sampling of every kind, where the logits are."""
    number = list(LINKED).index(mode)
    asked = [request(target, number)]
    robot = Robot(draft, DraftingConfig.of(mode, exit_gain=0.0), asked, WEATHER, draft_s=0.05)
    with passes_between_devices():
        run(spread, [robot], exits=noisy_exits(spread, 0.6), self_draft=beside)
    assert robot.answers == [alone(target, each) for each in asked]


def test_robots_in_one_batch_are_answered_as_on_one_device(target: Vlm, draft: Vlm, spread: Vlm) -> None:
    """With a short list of the exits, and prompts in chunks beside the drafts of the other."""
    exits = noisy_exits(spread, 0.9)
    exits.set_short_list(range(target.vocabulary - 9))
    exits.set_reliability({layer: Reliability((0.0, 1.0), (0.9,)) for layer in exits.layers}, Head.SHORT)
    exits.use(Head.SHORT)
    asked = [request(target, number) for number in (0, 1)]
    robots = [
        Robot(draft, DraftingConfig.of(Mode.FULL), [each, replace(each, jpeg=jpeg(7))], WEATHER) for each in asked
    ]
    with passes_between_devices():
        run(spread, robots, exits=exits)
    for robot in robots:
        assert robot.answers == [alone(target, each) for each in robot.requests]


def test_a_verifier_serves_what_is_spread(tiny_target: Path, tmp_path: Path) -> None:
    """The real process, in which the devices are; its log has what is where."""
    pair = make_target(tiny_target, tmp_path)
    flags = "--dtype float64 --max-sessions 2 --capacity 192 --device lazy:0,lazy:1 --no-load-check"
    verifier = start(pair.folder, *flags.split(), preexec_fn=devices.attach)
    try:
        robot = Raw(verifier.address)
        robot.send(pair.hello)
        welcome = robot.receive()
        assert isinstance(welcome, Welcome) and welcome.exit_layers == [1, 2]
        assert answer_by_drafts(robot, 0, pair.truths[0], right=3, junk=2) == pair.truths[0]
        robot.close()
        assert verifier.stop() == 0
    finally:
        verifier.process.kill()
    assert any("lazy:0 (layers 0 to 1), lazy:1 (layers 2 to 3)" in line for line in verifier.log)


def test_a_fed_head_drafts_from_layers_of_both_devices(
    target: Vlm, draft: Vlm, spread: Vlm, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config(
        target=target.fingerprint, tokenizer=target.tokenizer_fingerprint, vocabulary=target.vocabulary,
        hidden=target.hidden_size, short_list=tuple(range(target.vocabulary - 2)),
    )  # fmt: skip
    assert config.layers[0] < 2 <= config.layers[-1]
    encoder = random_encoder(config)
    encoder.config = config = replace_fields(config, features=fingerprint(encoder))
    encoder.to(spread.head_device)
    head = random_head(config, scale=2.0)
    robot = Robot(draft, DraftingConfig.of(Mode.FULL), [request(target, 0)], WEATHER, head=head)
    with passes_between_devices():
        run(spread, [robot], encoder=encoder)
    assert robot.answers == [alone(target, robot.requests[0])]
    assert "gets features" not in caplog.text, "an encoder that fails is logged, and costs no answer"
