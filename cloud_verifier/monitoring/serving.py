"""The pages of `--http` beside whatever has figures: a verifier or a cluster's gateway."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cloud_verifier.config import Monitoring, StartError
from speculation import extras

if TYPE_CHECKING:
    from cloud_verifier.monitoring.exposition import Shown

_log = logging.getLogger("cloud_verifier")


def need(extra: str, *modules: str) -> None:
    """Raise StartError where the packages of an extra are not installed."""
    try:
        extras.need(extra, *modules)
    except ImportError as error:
        raise StartError(str(error)) from None


@contextmanager
def pages_served(settings: Monitoring, shown: Shown) -> Iterator[None]:
    """Serve the pages meanwhile, where `--http` asks for them. Raises StartError."""
    if settings.http is None:
        yield
        return
    need("monitoring", "prometheus_client")
    # Late, because a verifier without --http runs without these packages.
    from cloud_verifier.monitoring.exposition import pages_of
    from cloud_verifier.monitoring.pages import HttpServer

    server = HttpServer(settings.http_bind, settings.http, pages_of(shown))
    try:
        _log.info("figures at %s: /metrics, /health, /ready, /load and /version", server.url)
        yield
    finally:
        server.close()
