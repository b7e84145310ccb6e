"""A cluster's settings, what its replicas are started with, and what is wrong in one sentence."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cloud_verifier.__main__ import main, parse
from cloud_verifier.cluster.local import LocalFleet, count_gpus, make_secret, places_of, replica_command
from cloud_verifier.cluster.on_ray import in_full
from cloud_verifier.cluster.scaling import Scaling
from cloud_verifier.cluster.settings import DRAIN_S, ClusterSettings
from cloud_verifier.cluster.tickets import SECRET_BYTES
from cloud_verifier.config import Link, ServerConfig, StartError
from speculation.settings import fields_of

SERVER = [field.name for field in fields_of(ServerConfig)]


@pytest.mark.parametrize(
    ("settings", "gpus", "limits"),
    [
        ({}, 0, (1, 1)),
        ({}, 6, (6, 6)),
        ({"replicas": "3"}, 6, (3, 3)),
        ({"min": 1, "max": 4}, 0, (1, 4)),
        ({"max": 2}, 6, (2, 2)),
        ({"min": 3}, 0, (3, 3)),
        ({"replicas": "2", "max": 5}, 0, (2, 5)),
        ({"replicas": "2", "min": 1}, 0, (1, 2)),
    ],
)
def test_how_many_replicas_run(settings: dict[str, str], gpus: int, limits: tuple[int, int]) -> None:
    found = ClusterSettings(**settings).limits(Scaling(up_s=9.0, late_share=0.5), gpus)  # type: ignore[arg-type]
    assert (found.min, found.max) == limits and (found.up_s, found.late_share) == (9.0, 0.5)


def test_settings_that_cannot_be_are_named() -> None:
    with pytest.raises(StartError, match="--max 2 is below min 3"):
        ClusterSettings(min=3, max=2).limits(Scaling(), 0)
    for replicas in ("0", "-1", "some", "1025"):
        with pytest.raises(StartError, match=f"--replicas '{replicas}': give auto, or 1 to 1024"):
            ClusterSettings(replicas=replicas)
    with pytest.raises(StartError, match="--replica-port 70000 is outside 0 to 65535"):
        ClusterSettings(replica_port=70000)
    with pytest.raises(StartError, match="--replica-port 65534: 3 replicas need"):
        ClusterSettings(replica_port=65534, max=3).limits(Scaling(), 0)
    assert ClusterSettings(replica_port=65534, max=2).limits(Scaling(), 0).max == 2


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"replicas": "3", "max": 2}, "--replicas 3 is outside --min 1 to --max 2"),
        ({"replicas": "2", "min": 3}, "--replicas 2 is outside --min 3 to --max 1024"),
        ({"on": "local", "address": "10.0.0.1:6379"}, "--address is of a Ray cluster"),
        ({"on": "local", "stop": True, "address": ""}, "--stop is of a Ray cluster"),
        ({"on": "local", "cpus_per_replica": 2.0}, "--cpus-per-replica is of a Ray cluster"),
        ({"host": "gpu.local"}, "--host is of --on local"),
        ({"stop": True}, "--stop: give --address"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(StartError, match=problem):
        ClusterSettings(**settings)  # type: ignore[arg-type]


def test_robots_are_sent_to_an_address_that_they_can_reach() -> None:
    assert ClusterSettings().reached_at(Link("tcp://10.0.0.1:5555", allow_plain=True)) == "10.0.0.1"
    assert ClusterSettings("local", host="gpu.local").reached_at(Link("tcp://0.0.0.0:5555")) == "gpu.local"
    for wildcard in ("0.0.0.0", "*", "[::]"):
        with pytest.raises(StartError, match="give --host"):
            ClusterSettings().reached_at(Link(f"tcp://{wildcard}:5555"))


def test_a_replica_is_started_with_the_clusters_settings_and_its_own_address() -> None:
    given = [
        "--model", "m", "--policy", "full_budget", "--allow-plain", "--max-batch", "3", "--idle-s", "7.5",
        "--keys", "k", "--log-file", "f", "--trace", "t", "--bind", "tcp://0.0.0.0:1", "--memory", "2GB",
        "--draft-model", "d", "--queue-policy", "newest", "--http", "9155",
    ]  # fmt: skip
    options = parse(["cluster", *given])
    words = replica_command(options, "tcp://0.0.0.0:*", 1)
    assert words[1:4] == ["-m", "cloud_verifier", "replica"]
    own = parse([*words[3:], "--name", "replica-1", "--supervisor", "s"])
    assert {name for name in SERVER if own[name] != options[name]} == {"bind", "http", "trace", "log_file"}
    assert (own["bind"], own["trace"], own["log_file"]) == ("tcp://0.0.0.0:*", None, None)
    assert own["http"] == 9156, "the door has the first"
    assert own["drain_s"] == options["drain_s"] == DRAIN_S
    assert parse(["serve", "--model", "m"])["drain_s"] == 0.0


def test_actors_are_given_paths_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They work in another folder than the command line that names them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").mkdir()
    given = parse(["cluster", "--model", "org/model", "--keys", "keys", "--device", "cpu"])
    changed = {"keys": tmp_path / "keys"}
    assert in_full(given) == {**given, **changed}


def test_each_replica_of_a_machine_has_its_own_port_and_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Started:
        def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
            started.append((name, command[0], environment.get("CUDA_VISIBLE_DEVICES")))

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    fleet = LocalFleet(Started(), lambda bind, number: [bind], "0.0.0.0", 5600, 2)  # type: ignore[arg-type]
    for name in ("replica-1", "replica-2"):
        fleet.start(name)
    assert started == [("replica-1", "tcp://0.0.0.0:5600", "4"), ("replica-2", "tcp://0.0.0.0:5601", "6")]
    LocalFleet(Started(), lambda bind, number: [bind]).start("replica-3")  # type: ignore[arg-type]
    assert started[2][1] == "tcp://127.0.0.1:*"


def test_a_replica_of_several_gpus_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Started:
        def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
            started.append(environment["CUDA_VISIBLE_DEVICES"])

    def fleet(gpus: int) -> LocalFleet:
        return LocalFleet(Started(), lambda bind, number: [bind], gpus=gpus, gpus_each=2)  # type: ignore[arg-type]

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3,4,6,7")
    for name in ("replica-1", "replica-2", "replica-3"):
        fleet(5).start(name)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    fleet(4).start("replica-2")
    assert started == ["1,3", "4,6", "1,3", "2,3"]


def test_replicas_are_counted_by_the_gpus_that_each_needs_on_one_machine() -> None:
    assert (places_of([6], 1), places_of([6], 2), places_of([3, 3, 1], 2), places_of([0, 0], 2)) == (6, 3, 2, 0)
    with pytest.raises(StartError, match="--gpus-per-replica 4: no machine has so many, the largest has 3"):
        places_of([2, 3], 4)


@pytest.mark.parametrize(
    ("device", "gpus", "own"),
    [
        ("cpu", 0, "cpu"),
        ("cpu", 1, "cpu"),
        ("cuda", 0, "cuda"),
        ("cuda", 2, "cuda:0,cuda:1"),
        ("cuda:0, cuda:1", 0, "cuda:0,cuda:1"),
        ("cuda:0,cuda:1", 2, "cuda:0,cuda:1"),
    ],
)
def test_a_replica_is_given_the_numbers_of_its_own_gpus(device: str, gpus: int, own: str) -> None:
    assert ClusterSettings(gpus_per_replica=gpus).device(device) == own


@pytest.mark.parametrize(
    ("device", "gpus", "problem"),
    [
        ("cpu", 2, "--gpus-per-replica 2: --device cpu computes on none; give --device cuda"),
        ("cuda:0,cuda:1", 3, "counts them from 0; give --device cuda:0,cuda:1,cuda:2, or --device cuda --gpus-per-rep"),
        ("cuda:0,cuda:1", 1, "counts them from 0; give --device cuda:0, or"),
        ("cuda:2,cuda:3", 0, "a replica with 2 GPUs counts them from 0; give --device cuda:0,cuda:1"),
        ("cuda:1", 2, "counts them from 0"),
    ],
)
def test_devices_that_a_replica_does_not_have_are_refused(device: str, gpus: int, problem: str) -> None:
    with pytest.raises(StartError, match=problem):
        ClusterSettings(gpus_per_replica=gpus).device(device)


def test_the_secret_lies_beside_the_keys_or_where_it_is_to(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    secret = make_secret(ClusterSettings(), Link(keys=keys))
    assert make_secret(ClusterSettings(), Link(keys=keys)) == secret
    assert stat.S_IMODE((keys / "cluster.secret").stat().st_mode) == 0o600
    own = ClusterSettings(secret_file=tmp_path / "own")
    assert make_secret(own, Link(keys=keys)) == make_secret(own, Link()) != secret
    assert len(make_secret(ClusterSettings(), Link())) == SECRET_BYTES
    (tmp_path / "own").chmod(0o644)
    with pytest.raises(StartError, match="--secret-file .* can be read by others"):
        make_secret(own, Link())


def test_the_gpus_that_are_shown_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for shown, count in (("", 0), ("-1", 0), ("0,2", 2), ("GPU-abc", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        assert count_gpus() == count


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--model", "nowhere"], "--model nowhere: no such folder"),
        (["--model", "models/target", "--on", "local", "--bind", "tcp://0.0.0.0:1"], "give --host"),
        (["--model", "models/target", "--on", "local", "--replicas", "none"], "--replicas 'none'"),
        (["--model", "models/target", "--on", "local", "--gpus-per-replica", "2"], "--device cpu computes on none"),
        (["--model", "models/target", "--on", "local", "--low-utilisation", "0.9"], "low_utilisation 0.9 is above"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[3])
    assert main(["cluster", *words]) == 2
    printed = capsys.readouterr().err
    assert problem in printed and len(printed.strip().splitlines()) == 1


def test_a_replica_without_a_supervisor_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["replica", "--model", "m", "--name", "a", "--supervisor", str(tmp_path / "none")]) == 2
    assert "nobody supervises replicas at" in capsys.readouterr().err
