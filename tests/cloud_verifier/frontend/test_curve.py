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


def damage(folder: Path, name: str, how: object) -> None:
    """Remove a file of a key folder, or give it a mode or another content."""
    if how is None:
        (folder / name).unlink()
    elif isinstance(how, int):
        (folder / name).chmod(how)
    else:
        (folder / name).write_text(str(how))


@pytest.mark.parametrize(
    ("path", "how", "says"),
    [
        ("server.key_secret", 0o666, r"others may read server.key_secret \(mode 0666\); run: chmod 600 \S+secret$"),
        ("server.key_secret", 0o640, r"run: chmod 600 \S+server.key_secret$"),
        (AUTHORIZED, 0o777, r"anybody may add keys to \S+; run: chmod 700 \S+authorized$"),
        ("server.key_secret", None, "No such file|not found"),
        ("server.key_secret", f'curve\n    public-key = "{"k" * 40}"\n', "holds no pair of 40-character keys"),
        (
            "server.key_secret",
            'curve\n    public-key = "abc"\n    secret-key = "def"\n',
            "holds no pair of 40-character",
        ),
        (f"{AUTHORIZED}/client.key", None, "authorized/ holds no client key, so nobody could connect"),
    ],
)
def test_keys_that_others_reach_or_that_cannot_be_used_stop_the_start(
    tmp_path: Path, path: str, how: object, says: str
) -> None:
    make_keys(tmp_path)
    damage(tmp_path, path, how)
    with pytest.raises(StartError, match=f"--keys .*({says})"):
        RouterSocket(LOOPBACK, tmp_path)


def test_files_are_read_when_they_change_and_what_is_broken_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A link that leads nowhere, or in a circle, keeps no other robot out either."""
    make_keys(tmp_path, "go2-7")
    make_keys(tmp_path, "go2-8")
    folder = tmp_path / AUTHORIZED
    (folder / "broken.key").write_text("nothing")
    (folder / "a b.key").write_bytes((folder / "go2-7.key").read_bytes())
    (folder / "circle.key").symlink_to("circle.key")
    (folder / "nowhere.key").symlink_to("missing.key")
    keys = AuthorizedKeys(folder)
    for _ in range(3):
        keys.refresh()
    assert len(keys) == 2 and "go2-7" in keys and "broken" not in keys and "a b" not in keys
    assert caplog.text.count("broken.key") == 2 and "a robot's name has letters" in caplog.text  # path, and reason
    assert all(f"{name}.key, so its robot cannot" in caplog.text for name in ("circle", "nowhere"))
    old = zmq.auth.load_certificate(folder / "go2-7.key")[0]
    assert keys.name(old) == "go2-7" and keys.name(b"nobody") == ""
    (folder / "broken.key").unlink()
    (folder / "go2-8.key").replace(folder / "go2-7.key")
    keys.refresh()
    assert sorted(keys.gone) == ["go2-7", "go2-8"] and keys.name(old) == ""
    new = zmq.auth.load_certificate(folder / "go2-7.key")[0]
    assert keys.name(new) == "go2-7", "another key under the same name is another robot"


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
            assert server.zap_socket.poll(PATIENCE_MS)
            server.answer()
            assert zap.recv_multipart()[3] == b"400"
        zap.close()
    finally:
        server.stop()
        context.term()
    assert 1 <= caplog.text.count("refused a client") <= REFUSED_AT_ONCE + 5
