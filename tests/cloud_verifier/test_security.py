"""Keys, and no plain text where strangers listen. Real sockets on loopback."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import zmq
import zmq.auth

from cloud_verifier.security import AUTHORIZED, check_bind, make_keys, make_next_key, switch_keys
from cloud_verifier.start_error import StartError

LOOPBACK = "tcp://127.0.0.1:*"
PATIENCE_MS = 10_000


def test_a_public_address_needs_keys_or_a_word_and_loopback_needs_none() -> None:
    for address in ("tcp://127.0.0.1:5555", "tcp://localhost:*", "tcp://[::1]:1", "ipc:///run/v.sock"):
        check_bind(address, encrypted=False, allow_plain=False)
    for address in ("tcp://0.0.0.0:5555", "tcp://*:5555", "tcp://192.168.1.2:5555", "tcp://robot:5555"):
        with pytest.raises(StartError, match="--allow-plain"):
            check_bind(address, encrypted=False, allow_plain=False)
        check_bind(address, encrypted=True, allow_plain=False)
        check_bind(address, encrypted=False, allow_plain=True)
    for address in ("", "5555", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:70000", "udp://a:1", "ipc://"):
        with pytest.raises(StartError, match=r"write tcp://HOST:PORT"):
            check_bind(address, encrypted=True, allow_plain=True)


def test_keys_are_private_and_never_overwritten(tmp_path: Path) -> None:
    folder, before = tmp_path / "keys", os.umask(0)
    try:
        names = {path.relative_to(folder).as_posix() for path in make_keys(folder)}
    finally:
        os.umask(before)
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o700 for each in (folder, folder / AUTHORIZED))
    assert names == {"server.key", "server.key_secret", "authorized/client.key", "client.key_secret"}
    for secret in folder.glob("*.key_secret"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    server = (folder / "server.key_secret").read_bytes()
    with pytest.raises(StartError, match="'client' has a key already"):
        make_keys(folder)
    make_keys(folder, "go2-7")
    assert (folder / "server.key_secret").read_bytes() == server
    assert len(list((folder / AUTHORIZED).iterdir())) == 2


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


def test_a_robots_name_is_no_path(tmp_path: Path) -> None:
    for name in ("server", "server_next", "../x", "", "a b", "a" * 65):
        with pytest.raises(StartError, match="--client .*: use at most 64 letters"):
            make_keys(tmp_path, name)
