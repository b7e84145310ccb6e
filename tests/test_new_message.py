"""A message is a struct in wire.py with its entry, its sender and its receiver; nothing else must know it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEW_MESSAGE = """
import importlib.util, pathlib, random, sys
path = pathlib.Path("speculation/wire.py")
text = path.read_text(encoding="utf-8")
struct = '''class Battery(Message, tag=16, frozen=True):
    left: Probability


AnyMessage: TypeAlias = (
    Battery | '''
assert text.count("AnyMessage: TypeAlias = (\\n    ") == 1
text = text.replace("AnyMessage: TypeAlias = (\\n    ", struct)
module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("speculation.wire", path))
sys.modules["speculation.wire"] = module
import speculation
speculation.wire = module
exec(compile(text, str(path), "exec"), module.__dict__)

from cloud_verifier.server import Server
from edge_drafter import Drafter, DraftingConfig, sources_of
from edge_drafter.link import LinkConfig, LinkState, ZmqLink
from speculation import wire
from speculation.wire import Battery, Commit, FaultCode
from tests.cloud_verifier import bench as cloud
from tests.edge_drafter.fakes import (
    FakeClock, FakeLink, FakeModel, Weather, alone, hashed_draft, hashed_target, request,
)  # fmt: skip
from tests.hostile import mutated

# It crosses the wire, it is bounded, and every bent form of it is a message or a WireError.
payload = wire.encode(Battery(0.5))
assert wire.decode(payload) == Battery(0.5) and wire.kind_of(payload) is Battery
try:
    wire.decode(wire.encode(Battery(1.5)))
except wire.WireError as error:
    assert "Battery.left" in str(error), error
else:
    raise AssertionError("an impossible battery was taken")
dice = random.Random(3)
for _ in range(2000):
    try:
        wire.decode(mutated([payload], dice))
    except wire.WireError:
        pass

# A verifier without a receiver refuses it, in the session's own name, and goes on.
world = cloud.Bench()
world.welcome(b"robot")
refused = world.ask(b"robot", Battery(0.5))
assert [fault.code for fault in refused] == [FaultCode.MALFORMED], refused
assert "Battery goes from verifier to edge only" in refused[0].message

# With one it is taken; it may answer in kind.
class Receiver(Server):
    def _dispatch(self, session, message):
        if isinstance(message, Battery):
            self.outbox.send(session, Battery(message.left / 2))
        else:
            super()._dispatch(session, message)

world.server.__class__ = Receiver
assert world.ask(b"robot", Battery(0.5)) == [Battery(0.25)]

# The edge's link keeps it for the step.
class Peer:
    def put(self, payload, now): ...

ZmqLink._run = lambda self: None
link = ZmqLink(LinkConfig("tcp://127.0.0.1:9", cloud.HELLO))
link._state = LinkState.NOMINAL
link._take(payload, {}, Peer(), 0.0)
assert link.receive(0.0) == Battery(0.5)

# A step loop without a receiver leaves it out: the answer is the target's own.
class Interleaving(FakeLink):
    extra = 0

    def receive(self, timeout):
        message = super().receive(timeout)
        if isinstance(message, Commit):
            self.extra += 1
            self._inbox.append(Battery(0.1))
        return message

clock, target = FakeClock(), hashed_target(1)
link = Interleaving(target, clock, Weather())
config = DraftingConfig.of("full")
sources = sources_of(config, FakeModel(hashed_draft(target, 1, 0.8), clock, 0.05))
result = Drafter(sources, link, config, clock).run(request())
assert result.tokens == alone(target, 24), result
assert link.extra >= 2, link.extra
"""


def test_a_new_message_is_a_struct_its_sender_and_its_receiver() -> None:
    found = subprocess.run(
        [sys.executable, "-c", NEW_MESSAGE], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "ros_ws/src/spec_vlm_nav")])},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
