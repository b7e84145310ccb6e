"""Keys, and no plain text where strangers listen. Real sockets on loopback."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

import pytest
import zmq
import zmq.auth

from cloud_verifier.mailbox import Mailbox
from cloud_verifier.security import AUTHORIZED, check_bind, make_keys
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


@pytest.mark.parametrize("name", ["server", "../x", "", "a b"])
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
        Mailbox(LOOPBACK, tmp_path)


def test_an_address_in_use_stops_the_start() -> None:
    first = Mailbox(LOOPBACK)
    try:
        with pytest.raises(StartError, match=f"--bind {first.address}: Address already in use"):
            Mailbox(first.address)
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
    mailbox = Mailbox(LOOPBACK, keys)
    stranger = Client(mailbox.address, keys / "server.key", strangers / "client.key_secret")
    plain = Client(mailbox.address)
    make_keys(keys, "late")  # a robot that is added while the server runs
    friends = [Client(mailbox.address, keys / "server.key", keys / f"{name}.key_secret") for name in ("client", "late")]
    try:
        for refused in (stranger, plain):
            with contextlib.suppress(zmq.Again):  # the server may have hung up by now
                refused.socket.send(wire.encode(Ping(13)), zmq.NOBLOCK)
        for number, friend in enumerate(friends):
            friend.socket.send(wire.encode(Ping(number)))
        received: set[int] = set()
        for _ in range(100):
            mailbox.wait(0.1)
            while (mail := mailbox.receive()) is not None:
                peer, frames = mail
                message = wire.decode(frames[0])
                assert isinstance(message, Ping)
                received.add(message.nonce)
                assert mailbox.send(peer, wire.encode(Pong(message.nonce)))
            if received >= {0, 1}:
                break
        for number, friend in enumerate(friends):
            assert friend.socket.poll(PATIENCE_MS)
            assert wire.decode(friend.socket.recv()) == Pong(number)
        assert received == {0, 1}
    finally:
        for client in (stranger, plain, *friends):
            client.close()
        mailbox.close()


def test_nothing_blocks_on_a_peer_that_is_gone_or_does_not_read() -> None:
    mailbox = Mailbox(LOOPBACK)
    client = Client(mailbox.address)
    client.socket.rcvhwm = 1
    try:
        assert not mailbox.send(b"nobody", wire.encode(Ping(1)))
        client.socket.send(b"hi")
        for _ in range(100):
            mailbox.wait(0.1)
            if (mail := mailbox.receive()) is not None:
                break
        assert mail is not None
        big = wire.encode(wire.Fault(wire.FaultCode.INTERNAL, "x" * 1000))
        for _ in range(100_000):  # kernel buffers, then the pipe, then the backlog
            if not mailbox.send(mail[0], big):
                break
        else:
            pytest.fail("a peer that does not read must be given up")
        assert mailbox.send(mail[0], big, droppable=True)
        mailbox.forget(mail[0])
    finally:
        client.close()
        mailbox.close()
