"""Only robots with an authorized key get in, and keys may change while the socket is open."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq
import zmq.auth

from cloud_verifier.frontend.curve import REFUSED_AT_ONCE, AuthorizedKeys, CurveServer
from cloud_verifier.frontend.router_socket import RouterSocket
from cloud_verifier.security import AUTHORIZED, make_keys, make_next_key, switch_keys
from cloud_verifier.start_error import StartError

LOOPBACK = "tcp://127.0.0.1:*"
PATIENCE_MS = 60_000


@pytest.mark.parametrize(
    ("path", "mode", "advice"),
    [
        ("server.key_secret", 0o666, r"others may read server.key_secret \(mode 0666\); run: chmod 600 \S+secret$"),
        ("server.key_secret", 0o640, r"run: chmod 600 \S+server.key_secret$"),
        (AUTHORIZED, 0o777, r"anybody may add keys to \S+; run: chmod 700 \S+authorized$"),
    ],
)
def test_keys_that_others_reach_stop_the_start_with_the_command_that_helps(
    tmp_path: Path, path: str, mode: int, advice: str
) -> None:
    make_keys(tmp_path)
    (tmp_path / path).chmod(mode)
    with pytest.raises(StartError, match=advice):
        RouterSocket(LOOPBACK, tmp_path)


def test_files_are_read_when_they_change_and_what_is_broken_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_keys(tmp_path, "go2-7")
    make_keys(tmp_path, "go2-8")
    folder = tmp_path / AUTHORIZED
    (folder / "broken.key").write_text("nothing")
    (folder / "a b.key").write_bytes((folder / "go2-7.key").read_bytes())
    keys = AuthorizedKeys(folder)
    for _ in range(3):
        keys.refresh()
    assert len(keys) == 2 and "go2-7" in keys and "broken" not in keys and "a b" not in keys
    assert caplog.text.count("broken.key") == 2 and "a robot's name has letters" in caplog.text  # path, and reason
    old = zmq.auth.load_certificate(folder / "go2-7.key")[0]
    assert keys.name(old) == "go2-7" and keys.name(b"nobody") == ""
    (folder / "broken.key").unlink()
    (folder / "go2-8.key").replace(folder / "go2-7.key")
    keys.refresh()
    assert sorted(keys.gone) == ["go2-7", "go2-8"] and keys.name(old) == ""
    new = zmq.auth.load_certificate(folder / "go2-7.key")[0]
    assert keys.name(new) == "go2-7", "another key under the same name is another robot"


def test_one_file_that_cannot_be_had_keeps_no_robot_in_or_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A link that leads nowhere, or in a circle, once stopped the start, and every change while the verifier served."""
    make_keys(tmp_path, "go2-7")
    folder = tmp_path / AUTHORIZED
    (folder / "circle.key").symlink_to("circle.key")
    (folder / "nowhere.key").symlink_to("missing.key")
    keys = AuthorizedKeys(folder)
    assert len(keys) == 1 and all(f"{name}.key, so its robot cannot" in caplog.text for name in ("circle", "nowhere"))
    make_keys(tmp_path, "go2-8")
    (folder / "go2-7.key").unlink()
    keys.refresh()
    assert "go2-8" in keys and keys.gone == ["go2-7"]


def test_a_server_key_whose_mode_was_mended_is_taken_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As the line in the log asks for."""
    make_keys(tmp_path)
    make_next_key(tmp_path)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server, secret = CurveServer(context, tmp_path), tmp_path / "server.key_secret"
    try:
        (tmp_path / "server_next.key_secret").chmod(0o644)
        switch_keys(tmp_path)
        server.refresh()
        assert not server.renewed() and f"run: chmod 600 {secret}" in caplog.text
        secret.chmod(0o600)
        server.refresh()
        assert server.renewed()
    finally:
        server.stop()
        context.term()


def test_a_stranger_with_ever_other_keys_gets_few_lines_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_keys(tmp_path)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server = CurveServer(context, tmp_path)
    asks = ("1.0", "1", "", "127.0.0.1", "", "CURVE")
    questions = [[*(word.encode() for word in asks), bytes([number]) * 32] for number in range(100)]
    try:
        zap = context.socket(zmq.DEALER)
        zap.linger = 0
        zap.connect("inproc://zeromq.zap.01")
        for question in questions:
            zap.send_multipart([b"", *question])
            assert server.socket.poll(PATIENCE_MS)
            server.answer()
            assert zap.recv_multipart()[3] == b"400"
        zap.close()
    finally:
        server.stop()
        context.term()
    assert 1 <= caplog.text.count("refused a client") <= REFUSED_AT_ONCE + 5


@pytest.mark.parametrize("damage", ["missing", "no secret", "short", "nobody"])
def test_keys_that_cannot_be_used_stop_the_start(tmp_path: Path, damage: str) -> None:
    make_keys(tmp_path)
    secret = tmp_path / "server.key_secret"
    if damage == "missing":
        secret.unlink()
    elif damage == "no secret":
        secret.write_bytes((tmp_path / "server.key").read_bytes())
    elif damage == "short":
        secret.write_text('curve\n    public-key = "abc"\n    secret-key = "def"\n')
    else:
        (tmp_path / AUTHORIZED / "client.key").unlink()
    with pytest.raises(StartError, match="--keys"):
        RouterSocket(LOOPBACK, tmp_path)
