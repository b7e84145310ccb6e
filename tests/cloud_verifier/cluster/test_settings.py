"""A cluster's settings, what its replicas are started with, and what is wrong in one sentence."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cloud_verifier.__main__ import parse
from cloud_verifier.cluster.on_ray import Plan, replica_config
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
        ({"max": 2}, 6, (2, 2)),
        ({"min": 3}, 0, (3, 3)),
        ({"replicas": "2", "min": 1, "max": 5}, 0, (1, 5)),
    ],
)
def test_how_many_replicas_run(settings: dict[str, str], gpus: int, limits: tuple[int, int]) -> None:
    found = ClusterSettings(**settings).limits(Scaling(up_s=9.0, down_s=8.0), gpus)  # type: ignore[arg-type]
    assert (found.min, found.max) == limits and (found.up_s, found.down_s) == (9.0, 8.0)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"min": 3, "max": 2}, "--max 2 is below min 3"),
        *(({"replicas": each}, f"--replicas '{each}': give auto, or 1 to 1024") for each in ("0", "some", "1025")),
        ({"replica_port": 70000}, "--replica-port 70000 is outside 0 to 65535"),
        ({"replica_port": 65534, "max": 3}, "--replica-port 65534: 3 replicas need"),
        ({"replicas": "3", "max": 2}, "--replicas 3 is outside --min 1 to --max 2"),
        ({"replicas": "2", "min": 3}, "--replicas 2 is outside --min 3 to --max 1024"),
        ({"stop": True}, "--stop: give --address"),
    ],
)
def test_settings_that_cannot_be_or_would_do_nothing_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(StartError, match=problem):
        ClusterSettings(**settings).limits(Scaling(), 0)  # type: ignore[arg-type]


def test_a_replica_has_the_clusters_settings_and_its_own_address_and_pages() -> None:
    given = [
        "--model", "m", "--policy", "full_budget", "--allow-plain", "--max-batch", "3", "--idle-s", "7.5",
        "--keys", "k", "--log-file", "f", "--trace", "t", "--bind", "tcp://0.0.0.0:1", "--memory", "2GB",
        "--draft-model", "d", "--http", "9155",
    ]  # fmt: skip
    options = parse(["cluster", *given])
    whole = ServerConfig.of(**{name: options[name] for name in SERVER})
    for first, bind in ((0, "tcp://0.0.0.0:*"), (5600, "tcp://0.0.0.0:5601")):
        own = replica_config(Plan(whole, Scaling(), b"", first, 1.0, 0.0), 2)
        assert (own.link.bind, own.monitoring.http, own.monitoring.trace, own.monitoring.log_file) == (
            bind,
            9157,
            None,
            None,
        )
        assert msgspec.structs.replace(own.link, bind=whole.link.bind) == whole.link
        assert own.limits == whole.limits and own.scheduling == whole.scheduling and own.target == whole.target
    assert options["drain_s"] == DRAIN_S and parse(["serve", "--model", "m"])["drain_s"] == 0.0


def test_actors_are_given_paths_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They work in another folder than the command line that names them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").mkdir()
    given = ServerConfig.of(Path("org/model"), keys=Path("keys"))
    assert given.with_full_paths() == given.changed(keys=tmp_path / "keys")


@pytest.mark.parametrize(
    ("device", "gpus", "own"),
    [
        ("cpu", 1, "cpu"),
        ("cuda", 2, "cuda:0,cuda:1"),
        ("cuda:0, cuda:1", 0, "cuda:0,cuda:1"),
    ],
)
def test_a_replica_is_given_the_numbers_of_its_own_gpus(device: str, gpus: int, own: str) -> None:
    assert ClusterSettings(gpus_per_replica=gpus).device(device) == own


@pytest.mark.parametrize(
    ("device", "gpus", "problem"),
    [
        ("cpu", 2, "--gpus-per-replica 2: --device cpu computes on none; give --device cuda"),
        ("cuda:0,cuda:1", 3, "counts them from 0; give --device cuda:0,cuda:1,cuda:2, or --device cuda --gpus-per-rep"),
        ("cuda:2,cuda:3", 0, "a replica with 2 GPUs counts them from 0; give --device cuda:0,cuda:1"),
    ],
)
def test_devices_that_a_replica_does_not_have_are_refused(device: str, gpus: int, problem: str) -> None:
    with pytest.raises(StartError, match=problem):
        ClusterSettings(gpus_per_replica=gpus).device(device)


def test_the_secret_lies_beside_the_keys_or_where_it_is_to(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    secret = ClusterSettings().secret(Link(keys=keys))
    assert ClusterSettings().secret(Link(keys=keys)) == secret
    assert (keys / "cluster.secret").is_file()
    own = ClusterSettings(secret_file=tmp_path / "own")
    assert own.secret(Link(keys=keys)) == own.secret(Link()) != secret
    assert len(ClusterSettings().secret(Link())) == SECRET_BYTES
    (tmp_path / "own").chmod(0o644)
    with pytest.raises(StartError, match="--secret-file .* can be read by others"):
        own.secret(Link())
