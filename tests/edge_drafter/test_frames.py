"""Frames on their way to a verifier process: scaled on the robot to what the target sees, one or several a question."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cloud_verifier.engine import VlmEngine
from edge_drafter.decoder import EdgeDecoder
from edge_drafter.link import ZmqLink
from edge_drafter.question import VerifierRefused
from edge_drafter.settings import EdgeConfig
from speculation.frames import jpeg_size
from speculation.vlm import session as sessions
from speculation.vlm.inputs import Inputs
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import BeginStep, Jpegs, Sight, frames_of, jpeg_of
from tests.cloud_verifier.process import Verifier
from tests.edge_drafter.conftest import Robot, Serve
from tests.edge_drafter.test_decoder import ANSWER, PROMPT
from tests.models import frame


def picture(seed: int, height: int = 240, width: int = 320) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(frame(seed, 320)[:height, :width]).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[BeginStep]:
    """The questions that links send."""
    found: list[BeginStep] = []
    send = ZmqLink.send

    def noted(link: ZmqLink, message: Any) -> None:
        if isinstance(message, BeginStep):
            found.append(message)
        send(link, message)

    monkeypatch.setattr(ZmqLink, "send", noted)
    return found


def alone(vlm: Vlm, jpeg: Jpegs) -> list[int]:
    return [token for token, _ in VlmSession(vlm, 512).greedy(PROMPT, jpeg, ANSWER)]


@pytest.mark.parametrize("count", [1, 3])
def test_both_vision_towers_get_the_same_pixels(
    count: int, verifier: Verifier, target: Vlm, robot: Robot, sent: list[BeginStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Inputs] = []
    prepare = sessions.prepare

    def noted(*arguments: Any) -> Inputs:
        seen.append(prepare(*arguments))
        return seen[-1]

    monkeypatch.setattr(sessions, "prepare", noted)
    question = jpeg_of([picture(seed) for seed in range(count)])
    edge = robot(verifier.address, frames=count)
    answers = {mode: edge.decode(PROMPT, question, 60.0, mode).tokens for mode in ("sd", "cloud", "full")}
    assert edge.connect(20.0).sight == Sight(3, 28, 56 * 56, 56 * 56)
    small = sent[0].jpeg
    assert len(frames_of(small)) == count and all(jpeg_size(each) == (54, 72) for each in frames_of(small))
    assert sum(map(len, frames_of(small))) < sum(map(len, frames_of(question))) / 5
    assert {message.jpeg for message in sent} == {small}
    there = VlmEngine(target, 1, 512).prepare(PROMPT, small)
    assert len(seen) >= 2
    for here in seen[:2]:
        assert here.pixel_values is not None and there.pixel_values is not None
        np.testing.assert_array_equal(here.pixel_values, there.pixel_values)
        assert here.grids == there.grids == ((1, 2, 4),) * count
    assert {mode: list(tokens) for mode, tokens in answers.items()} == dict.fromkeys(answers, alone(target, small))


def test_more_frames_than_the_model_takes_are_refused_at_the_start(
    verifier: Verifier, tiny_target: Path, robot: Robot, serve: Serve
) -> None:
    with pytest.raises(VerifierRefused, match="frames is 4, but the verifier's model takes 3 a question; set "):
        robot(verifier.address, frames=4).connect(20.0)
    one = robot(serve(tiny_target).address, frames=2)
    with pytest.raises(VerifierRefused, match="frames is 2, but the verifier's model takes 1 a question"):
        one.connect(20.0)
    with pytest.raises(VerifierRefused, match="start the verifier with --frames 2"):
        one.decode(PROMPT, picture(0), 20.0)


def test_a_draft_alone_that_knows_its_objects_takes_one_frame(tiny_draft: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frames is 2, but draft model draft0 was trained on one; set frames to 1"):
        EdgeDecoder(EdgeConfig.flat(tiny_draft, mode="edge", frames=2))
    shutil.copytree(tiny_draft, tmp_path / "published")
    (tmp_path / "published" / "objects.json").unlink()
    EdgeDecoder(EdgeConfig.flat(tmp_path / "published", mode="edge", frames=2, answers="free")).close()
