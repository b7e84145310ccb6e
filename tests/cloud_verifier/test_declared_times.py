"""Forwards of a server with declared times."""

from __future__ import annotations

import pytest

from speculation.profiles import DeviceProfile
from speculation.wire import Idle
from tests.cloud_verifier.bench import Bench, begin
from tests.cloud_verifier.fake_target import FakeEngine


def test_a_declared_forward_that_is_too_slow_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(FakeEngine):
        def verify(self, rows):  # type: ignore[no-untyped-def]
            for output in super().verify(rows):
                bench.post.now += 0.01
                yield output

    bench = Bench(profile=DeviceProfile("fast", verify_s=0.001), engine=Slow())
    bench.welcome(b"a")
    bench.ask(b"a", begin(max_tokens=3, idle=Idle.DECODE))
    assert caplog.text.count("profile fast declares 1.0 ms") == 1
