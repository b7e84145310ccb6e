"""What the doctor says of a computer, of verifiers and of what a robot sends, without ROS."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cloud_verifier.security import make_keys
from spec_vlm_nav import doctor
from spec_vlm_nav.diagnostics import Level, Status
from spec_vlm_nav.graph import GRAPHS
from spec_vlm_nav.odometry import OdometrySample
from spec_vlm_nav.runner import free_address
from speculation.wire import PROTOCOL, Hello
from tests.cloud_verifier.process import Verifier, start

GO2 = GRAPHS["go2"]


def values(**given: str) -> dict[str, str]:
    return GO2.values(given)


def test_settings_are_named_each_with_its_own_line() -> None:
    wrong = values(keys="/nope", draft_model="/gone", link="foo")
    said = [line.message for line in doctor.settings(GO2, wrong)]
    for words in ("argument keys:=/nope", "argument draft_model:=/gone", "argument link:=foo"):
        assert sum(words in each for each in said) == 1, said
    assert [line.level for line in doctor.settings(GO2, values())] == [Level.OK]


CYCLONE = '<CycloneDDS><Domain><General><Interfaces><NetworkInterface name="{}"/></Interfaces></General></Domain>'
CYCLONE += "</CycloneDDS>"
FAST = "<dds><profiles><transport_descriptors><transport_descriptor><interfaceWhiteList><address>{}</address>"
FAST += "</interfaceWhiteList></transport_descriptor></transport_descriptors></profiles></dds>"


@pytest.mark.parametrize(
    ("given", "variable", "held", "words"),
    [
        ({}, "CYCLONEDDS_URI", CYCLONE.format("lo"), ""),
        ({}, "CYCLONEDDS_URI", CYCLONE.format("eth77"), "CYCLONEDDS_URI names eth77, which this machine does not have"),
        ({}, "CYCLONEDDS_URI", "<CycloneDDS", "CYCLONEDDS_URI cannot be read"),
        ({}, "FASTDDS_DEFAULT_PROFILES_FILE", FAST.format("127.0.0.1"), ""),
        ({}, "FASTRTPS_DEFAULT_PROFILES_FILE", FAST.format("192.168.123.99"), "names 192.168.123.99, which this"),
        ({"camera": "multicast", "camera_interface": "eth77"}, "X", "", "camera_interface names eth77"),
        ({"camera": "multicast"}, "X", "", "camera:=multicast needs camera_interface:=NAME, one of "),
        ({}, "ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST", "keeps ROS on this machine"),
        ({}, "ROS_LOCALHOST_ONLY", "1", "keeps ROS on this machine"),
    ],
)
def test_interfaces_that_settings_name_must_be_there(
    tmp_path: Path, given: dict[str, str], variable: str, held: str, words: str
) -> None:
    if variable.startswith("FAST"):
        (tmp_path / "fast.xml").write_text(held)
        held = str(tmp_path / "fast.xml")
    lines = list(doctor.network({variable: held}, values(**given)))
    assert [line.level is Level.OK for line in lines] == [not words]
    assert words in lines[0].message


@pytest.mark.parametrize("domain", ["233", "-1", "mine"])
def test_a_domain_without_ports_is_named_before_a_middleware_ends_the_process(domain: str) -> None:
    with pytest.raises(ValueError, match=f"^ROS_DOMAIN_ID is '{domain}'; give 0 to 232$"):
        doctor.check_domain({"ROS_DOMAIN_ID": domain})
    for known in ({}, {"ROS_DOMAIN_ID": ""}, {"ROS_DOMAIN_ID": "232"}):
        doctor.check_domain(known)


@pytest.mark.parametrize(
    ("free", "level"), [(10**10, Level.OK), (10**9, Level.WARN), (10**7, Level.ERROR)], ids=["much", "little", "none"]
)
def test_too_little_memory_and_a_full_disk_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, level: Level
) -> None:
    monkeypatch.setattr(doctor, "free_memory", lambda: free)
    monkeypatch.setattr(doctor, "shutil", SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=free // 10)))
    lines = list(doctor.space(tmp_path / "not" / "there"))
    assert lines[0].level is level
    assert lines[1].name == f"disk at {tmp_path}" and (lines[1].level is Level.OK) == (free // 10 >= 10**9)


@pytest.fixture(scope="module")
def verifier(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Verifier, Path]]:
    keys = tmp_path_factory.mktemp("verifier") / "keys"
    make_keys(keys)
    running = start(tiny_target, "--keys", str(keys))
    yield running, keys
    running.stop()


@pytest.mark.parametrize("wrong", ["nothing", "address", "keys", "protocol", "half of the model", "mode"])
def test_a_verifier_answers_or_it_is_told_why_not(
    verifier: tuple[Verifier, Path], tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    running, keys = verifier
    model, address = tiny_target, running.address
    if wrong == "address":
        # Nobody is there: no time makes a difference.
        monkeypatch.setattr(doctor, "ANSWER_S", 0.5)
        address = free_address()
    elif wrong == "keys":
        keys = tmp_path / "keys"
        make_keys(keys)
    elif wrong == "protocol":
        monkeypatch.setattr("edge_drafter.decoder.Hello", partial(Hello, protocol=PROTOCOL - 1))
    elif wrong == "half of the model":
        model = tmp_path / "model"
        shutil.copytree(tiny_target, model)
        weights = next(model.glob("*.safetensors"))
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    given = {"mode": "edge"} if wrong == "mode" else {}
    lines = list(doctor.verifiers(GO2, values(verifier=address, keys=str(keys), draft_model=str(model), **given)))
    last = lines[-1]
    words = {
        "nothing": "answers, round trip", "address": "is it running", "keys": "key", "protocol": "protocol",
        "half of the model": "model", "mode": "none is asked in mode edge",
    }[wrong]  # fmt: skip
    assert (last.level is Level.OK) == (wrong in ("nothing", "mode")), last
    assert words in last.message and "\n" not in last.message


def odometry(rate: float = 50.0, lag: float = 0.01, **changes: Any) -> Status:
    watch, frames = doctor.OdometryWatch(), changes.pop("frames", ("odom", "base_link"))
    count = int(5.0 * rate)
    for number in range(count):
        at = 100.0 + number / rate
        plain = {"position": (0.0, 0.0, 0.0), "orientation": (0.0, 0.0, 0.0, 1.0), "stamp": at - lag, "arrived": at}
        watch.take(OdometrySample(**{**plain, **changes}), lag, frames)
    return watch.status(100.0 + count / rate)


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({}, Level.OK, "50 Hz, 10 ms after its stamps"),
        ({"rate": 2.0}, Level.ERROR, "2.0 messages a second, at least 4"),
        ({"lag": 2.0}, Level.ERROR, "2.0 s after its stamps, more than 1.5 s"),
        ({"lag": -3.0}, Level.WARN, "3.0 s ahead of this clock"),
        ({"position": (float("nan"), 0.0, 0.0)}, Level.ERROR, "not finite"),
        ({"stamp": 50.0}, Level.ERROR, "stands still"),
        ({"frames": ("odom", "camera_link")}, Level.ERROR, "camera_link"),
    ],
)
def test_odometry_is_judged_by_all_its_messages(changes: dict[str, Any], level: Level, words: str) -> None:
    line = odometry(**changes)
    assert line.level is level and words in line.message, line


@pytest.mark.parametrize(
    ("rate", "skew", "brightness", "health", "level", "words"),
    [
        (8.0, 0.0, 255, Level.OK, Level.OK, "8.0 Hz"),
        (8.0, 0.0, 1, Level.OK, Level.ERROR, "all its pixels are alike (brightness 0 of 255)"),
        (1.0, 0.0, 255, Level.OK, Level.ERROR, "1.0 frames a second, at least 2"),
        (8.0, -30.0, 255, Level.OK, Level.WARN, "30.0 s ahead of this clock"),
        (0.0, 0.0, 255, Level.ERROR, Level.ERROR, "no camera frame has come"),
    ],
)
def test_a_camera_is_judged_by_its_rate_its_clock_and_its_picture(
    rate: float, skew: float, brightness: int, health: Level, level: Level, words: str
) -> None:
    message = "no camera frame has come" if health is Level.ERROR else f"{rate} Hz"
    pixels = (np.random.default_rng(0).random((8, 8, 3)) * brightness).astype(np.uint8)
    line = doctor.camera(Status("camera", health, message, {"rate Hz": rate, "clock skew s": skew}), pixels)
    assert line.level is level and words in line.message, line
