"""Keys, and no plain text where strangers listen. Real sockets on loopback."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import pytest
import zmq
import zmq.auth

from cloud_verifier.frontend.router_socket import RouterSocket
from cloud_verifier.security import (
    AUTHORIZED,
    REFUSED_AT_ONCE,
    AuthorizedKeys,
    CurveServer,
    check_bind,
    make_keys,
    make_next_key,
    switch_keys,
)
from cloud_verifier.start_error import StartError
from speculation import wire
from speculation.wire import Ping, Pong

LOOPBACK = "tcp://127.0.0.1:*"
PATIENCE_MS = 10_000


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:5555", "tcp://localhost:*", "tcp://[::1]:1", "ipc:///run/v.sock"])
def test_loopback_needs_no_keys(address: str) -> None:
    check_bind(address, encrypted=False, allow_plain=False)


@pytest.mark.parametrize(
    "address", ["tcp://0.0.0.0:5555", "tcp://*:5555", "tcp://192.168.1.2:5555", "tcp://robot:5555"]
)
def test_a_public_address_needs_keys_or_a_word(address: str) -> None:
    with pytest.raises(StartError, match="--allow-plain"):
        check_bind(address, encrypted=False, allow_plain=False)
    check_bind(address, encrypted=True, allow_plain=False)
    check_bind(address, encrypted=False, allow_plain=True)


@pytest.mark.parametrize(
    "address", ["", "5555", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:70000", "udp://a:1", "ipc://"]
)
def test_what_is_no_address_is_shown_one(address: str) -> None:
    with pytest.raises(StartError, match=r"write tcp://HOST:PORT"):
        check_bind(address, encrypted=True, allow_plain=True)


def test_keys_are_private_and_never_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    names = {path.relative_to(folder).as_posix() for path in make_keys(folder)}
    assert names == {"server.key", "server.key_secret", "authorized/client.key", "client.key_secret"}
    for secret in folder.glob("*.key_secret"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    server = (folder / "server.key_secret").read_bytes()
    with pytest.raises(StartError, match="'client' has a key already"):
        make_keys(folder)
    make_keys(folder, "go2-7")
    assert (folder / "server.key_secret").read_bytes() == server
    assert len(list((folder / AUTHORIZED).iterdir())) == 2


def test_key_folders_are_their_owner_s_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_keys(tmp_path / "keys")
    finally:
        os.umask(before)
    for folder in (tmp_path / "keys", tmp_path / "keys" / AUTHORIZED):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


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


def test_the_servers_key_is_replaced_in_two_steps(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="server.key_secret is missing"):
        make_next_key(tmp_path)
    make_keys(tmp_path)
    with pytest.raises(StartError, match="server_next.key_secret is missing; make it with keygen and --next-server"):
        switch_keys(tmp_path)
    public, secret = make_next_key(tmp_path)
    assert public.name == "server_next.key" and stat.S_IMODE(secret.stat().st_mode) == 0o600
    coming = zmq.auth.load_certificate(secret)
    with pytest.raises(StartError, match="--switch-server"):
        make_next_key(tmp_path)
    assert {path.name for path in switch_keys(tmp_path)} == {"server.key", "server.key_secret"}
    assert zmq.auth.load_certificate(tmp_path / "server.key")[0] == coming[0]
    assert not public.exists() and not secret.exists()


def test_a_change_of_the_servers_key_that_was_interrupted_is_ended_by_the_same_command(tmp_path: Path) -> None:
    make_keys(tmp_path)
    public, secret = make_next_key(tmp_path)
    coming = zmq.auth.load_certificate(secret)
    public.replace(tmp_path / "server.key")
    switch_keys(tmp_path)
    assert zmq.auth.load_certificate(tmp_path / "server.key_secret") == coming
    assert not public.exists() and not secret.exists()


@pytest.mark.parametrize("name", ["server", "server_next", "../x", "", "a b"])
def test_a_robots_name_is_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(StartError, match="--client"):
        make_keys(tmp_path, name)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="--keys"):
        make_keys(tmp_path / "file" / "keys")


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


def test_an_address_in_use_stops_the_start() -> None:
    first = RouterSocket(LOOPBACK)
    try:
        with pytest.raises(StartError, match=f"--bind {first.address}: Address already in use"):
            RouterSocket(first.address)
    finally:
        first.close()


class Client:
    """A DEALER with or without keys."""

    def __init__(self, address: str, server: Path | None = None, own: Path | None = None) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndtimeo = self.socket.rcvtimeo = PATIENCE_MS
        if server is not None and own is not None:
            self.socket.curve_serverkey = zmq.auth.load_certificate(server)[0]
            public, secret = zmq.auth.load_certificate(own)
            assert secret is not None
            self.socket.curve_publickey, self.socket.curve_secretkey = public, secret
        self.socket.connect(address)

    def close(self) -> None:
        self.socket.close()
        self.context.term()


def test_a_known_key_gets_in_and_others_do_not(tmp_path: Path) -> None:
    keys, strangers = tmp_path / "keys", tmp_path / "strangers"
    make_keys(keys)
    make_keys(strangers)
    router = RouterSocket(LOOPBACK, keys)
    stranger = Client(router.address, keys / "server.key", strangers / "client.key_secret")
    plain = Client(router.address)
    make_keys(keys, "late")  # a robot that is added while the server runs
    friends = [Client(router.address, keys / "server.key", keys / f"{name}.key_secret") for name in ("client", "late")]
    try:
        for refused in (stranger, plain):
            with contextlib.suppress(zmq.Again):  # the server may have hung up by now
                refused.socket.send(wire.encode(Ping(13)), zmq.NOBLOCK)
        for number, friend in enumerate(friends):
            friend.socket.send(wire.encode(Ping(number)))
        received: set[int] = set()
        for _ in range(100):
            router.wait(0.1)
            while (mail := router.receive()) is not None:
                peer, frames = mail
                message = wire.decode(frames[0])
                assert isinstance(message, Ping)
                received.add(message.nonce)
                assert router.send(peer, wire.encode(Pong(message.nonce)))
            if received >= {0, 1}:
                break
        for number, friend in enumerate(friends):
            assert friend.socket.poll(PATIENCE_MS)
            assert wire.decode(friend.socket.recv()) == Pong(number)
        assert received == {0, 1}
    finally:
        for client in (stranger, plain, *friends):
            client.close()
        router.close()


def test_nothing_blocks_on_a_peer_that_is_gone_or_does_not_read() -> None:
    router = RouterSocket(LOOPBACK)
    client = Client(router.address)
    client.socket.rcvhwm = 1
    try:
        assert not router.send(b"nobody", wire.encode(Ping(1)))
        client.socket.send(b"hi")
        for _ in range(100):
            router.wait(0.1)
            if (mail := router.receive()) is not None:
                break
        assert mail is not None
        big = wire.encode(wire.Fault(wire.FaultCode.INTERNAL, "x" * 1000))
        for _ in range(100_000):  # kernel buffers, then the pipe, then the backlog
            if not router.send(mail[0], big):
                break
        else:
            pytest.fail("a peer that does not read must be given up")
        assert router.send(mail[0], big, droppable=True)
        router.forget(mail[0])
    finally:
        client.close()
        router.close()
