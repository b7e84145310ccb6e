"""The pages of a cluster's gateway: its replicas as they report, ready where one of them has room."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
import pytest

from cloud_verifier.cluster.directory import Phase, Status
from cloud_verifier.monitoring.gateway_health import GatewayHealth
from cloud_verifier.monitoring.http_server import pages_of
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
    assert gateway.health_problem().startswith("the gateway's loop gave no sign for 60 s") and gateway.ready_problem()


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
