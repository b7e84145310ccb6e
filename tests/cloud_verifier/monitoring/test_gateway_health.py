"""The pages of a cluster's gateway: its replicas as they report, ready where one of them has room."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
import pytest

from cloud_verifier.cluster.directory import Phase, Status
from cloud_verifier.monitoring import series as s
from cloud_verifier.monitoring.gateway_health import GatewayHealth, GatewayLoad
from cloud_verifier.monitoring.http_server import pages_of
from cloud_verifier.monitoring.series import PREFIX
from tests.cloud_verifier.monitoring.conftest import Clock


def status(name: str, phase: Phase = Phase.READY, **fields: Any) -> Status:
    shown = {"address": "tcp://10.0.0.5:5556", "session_places": 4, "memory": 0.25, "utilisation": 0.5}
    return Status(name, phase, 1.0, **{**shown, **fields})


@pytest.fixture
def gateway(clock: Clock) -> GatewayHealth:
    return GatewayHealth(clock, 5.0)


def test_a_gateway_is_ready_where_a_replica_has_room(gateway: GatewayHealth, clock: Clock) -> None:
    assert gateway.ready_problem() == "no replica is ready, of 0"
    for sessions, expected in ((4, "full: all 1 replicas are (--max-sessions, --max)"), (3, "")):
        clock.now += 1.0
        replicas = [status("replica-1", Phase.JOINING), status("replica-2", sessions=sessions)]
        gateway.turn(partial(list, replicas), 3, 1)
        assert gateway.ready_problem() == expected
    assert not gateway.health_problem()
    clock.now += 60.0
    assert gateway.health_problem().startswith("the gateway's loop has not turned for 60 s") and gateway.ready_problem()


def test_pages_show_replicas_by_name(gateway: GatewayHealth) -> None:
    gateway.turn(lambda: [status("replica-1", sessions=2), status("replica-2", Phase.DRAINING, late=0.5)], 7, 1, 2)
    pages = pages_of(gateway)
    text = pages["/metrics"]("")[1].decode()
    for line in (
        'cluster_replicas{phase="ready"} 1.0', 'cluster_replicas{phase="joining"} 0.0', "ready 1.0",
        'replica_sessions{replica="replica-1"} 2.0', 'replica_late{replica="replica-2"} 0.5',
        "gateway_redirects_total 7.0", "gateway_turned_away_total 1.0",
        "frontend_restarts_total 2.0",
    ):  # fmt: skip
        assert f"\n{PREFIX}{line}\n" in text, line
    load = msgspec.json.decode(pages["/load"]("")[1], type=GatewayLoad)
    assert (load.sessions, load.session_places, load.replicas[1].phase) == (2, 8, Phase.DRAINING)
    shown = {
        line.split()[2].removesuffix("_total") for line in text.splitlines() if line.startswith(f"# HELP {PREFIX}")
    }
    assert shown == {PREFIX + series.name for series in s.GATEWAY_CATALOGUE}


def test_a_gateway_names_the_pages_of_its_replicas_for_prometheus(clock: Clock) -> None:
    gateway = GatewayHealth(clock, 5.0, 9155)
    replicas = [status("replica-1"), status("replica-2", Phase.JOINING, address=""),
                status("replica-12", Phase.DRAINING, address="tcp://[fd00::7]:40123")]  # fmt: skip
    gateway.turn(lambda: replicas, 0, 0)
    answer, body, kind = pages_of(gateway)["/targets"]("")
    assert (answer, kind) == (HTTPStatus.OK, "application/json")
    assert msgspec.json.decode(body) == [{"targets": ["10.0.0.5:9156", "[fd00::7]:9167"]}]
    for http in (None, 0):  # any free port: nobody knows which
        gateway = GatewayHealth(clock, 5.0, http)
        gateway.turn(lambda: replicas, 0, 0)
        assert gateway.targets() == [{"targets": []}]
