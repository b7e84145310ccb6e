"""Which addresses are ones, and where plain text may go."""

from __future__ import annotations

import re

import pytest

from speculation.address import addresses_of, bracketed, check_address, host_of, is_loopback, resolve

FLAGS = ("--keys DIR", "--allow-plain")


@pytest.mark.parametrize(
    ("hosts", "own"),
    [
        (("127.0.0.1", "127.8.9.1", "localhost", "LocalHost", "[::1]", ""), True),
        (("0.0.0.0", "*", "10.0.0.5", "[fe80::1]", "localhost.lan", "127.1", "127.0.0.1:0;10.0.0.5", "lo"), False),
    ],
)
def test_this_machine_alone_is_loopback(hosts: tuple[str, ...], own: bool) -> None:
    assert {host for host in hosts if is_loopback(host)} == (set(hosts) if own else set())


def test_plain_text_to_another_machine_is_refused_unless_allowed_or_encrypted() -> None:
    address = "tcp://10.0.0.5:5555"
    with pytest.raises(
        ValueError, match=r"^tcp://10\.0\.0\.5:5555 is not on this machine.*--keys DIR .*--allow-plain on"
    ):
        check_address(address, False, False, FLAGS)
    check_address(address, True, False, FLAGS)
    check_address(address, False, True, FLAGS)
    check_address("ipc:///run/verifier", False, False, FLAGS)


@pytest.mark.parametrize(
    "address",
    ["", "5555", "tcp://:1", "tcp://host", "tcp://a:70000", "udp://a:1", "ipc://",
     "tcp://[]:5555", "tcp://[1.2.3.4]x:5555", "tcp://[::g]:5555", "tcp://[::1:5555", "tcp://a:b:5555"],
)  # fmt: skip
def test_no_address_is_shown_one_whatever_is_allowed(address: str) -> None:
    for encrypted in (True, False):
        with pytest.raises(ValueError, match=r"write tcp://HOST:PORT"):
            check_address(address, encrypted, True, FLAGS)


def test_only_a_server_takes_any_port() -> None:
    assert host_of("tcp://127.0.0.1:*", any_port=True) == "127.0.0.1"
    with pytest.raises(ValueError, match="is no address"):
        host_of("tcp://127.0.0.1:*")


def test_a_list_of_addresses_is_separated_by_commas() -> None:
    assert addresses_of("tcp://a:1") == ("tcp://a:1",)
    assert addresses_of("tcp://a:1, tcp://b:2,") == ("tcp://a:1", "tcp://b:2", "")


@pytest.mark.parametrize("host", ["[::1]", "[::]", "[fd00::2]", "[fe80::1%eth0]"])
def test_an_ipv6_address_stands_in_brackets(host: str) -> None:
    assert host_of(f"tcp://{host}:5555") == host and bracketed(host[1:-1]) == bracketed(host) == host
    with pytest.raises(
        ValueError, match=f"an IPv6 address stands in brackets; write {re.escape(f'tcp://{host}:5555')}"
    ):
        host_of(f"tcp://{host[1:-1]}:5555")


def test_a_name_resolves_to_numbers_or_the_message_says_what_to_check() -> None:
    assert resolve("127.0.0.1") == ["127.0.0.1"] and resolve("[fe80::1%eth0]") == ["[fe80::1%eth0]"]
    assert "127.0.0.1" in resolve("localhost") or "[::1]" in resolve("localhost")
    with pytest.raises(ValueError, match="the name nowhere.invalid does not resolve: check its spelling or DNS"):
        resolve("nowhere.invalid")
