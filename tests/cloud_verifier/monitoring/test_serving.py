"""The pages of --http are there while they are to be, where they were asked for."""

from __future__ import annotations

import logging
from http import HTTPStatus
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from cloud_verifier.config import Monitoring, StartError
from cloud_verifier.monitoring.gateway import WatchedGateway
from cloud_verifier.monitoring.serving import need, pages_served


def test_pages_are_served_meanwhile_and_only_where_they_are_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cloud_verifier")
    watched = WatchedGateway(lambda: 0.0, 60.0)
    with pages_served(Monitoring(), watched):
        assert not caplog.text
    with pages_served(Monitoring(http=0), watched):
        url = caplog.messages[-1].split()[2].removesuffix(":")
        with urlopen(f"{url}/health", timeout=10.0) as answer:
            assert answer.status == HTTPStatus.OK
        with pytest.raises(StartError, match="--http"), pages_served(Monitoring(http=int(url.split(":")[-1])), watched):
            raise AssertionError("the port is taken")
    with pytest.raises(URLError):
        urlopen(f"{url}/health", timeout=10.0)


def test_a_missing_package_is_one_sentence_with_its_extra() -> None:
    with pytest.raises(StartError, match=r"no_such_package not found: .*\[monitoring\]"):
        need("monitoring", "no_such_package")
