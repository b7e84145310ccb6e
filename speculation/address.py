"""Addresses of verifiers, and the one rule about plain text: without keys only to and from this machine itself.

Without keys the other end is not authenticated, and it moves the robot. Both sides apply the rule.
"""

from __future__ import annotations

import ipaddress


def host_of(address: str, any_port: bool = False) -> str:
    """Return HOST of tcp://HOST:PORT, and nothing for ipc://PATH. Raises ValueError, with an example, for no address.

    any_port: the port may be *, as where a server takes a free one.
    """
    scheme, _, rest = address.partition("://")
    if scheme == "ipc" and rest:
        return ""
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not host or not ((any_port and port == "*") or (port.isdecimal() and int(port) < 65536)):
        raise ValueError(f"{address!r} is no address; write tcp://HOST:PORT, for example tcp://127.0.0.1:5555")
    return host


def addresses_of(text: str) -> tuple[str, ...]:
    """Return the addresses of a list that is separated by commas; one address is a list too."""
    return tuple(part.strip() for part in text.split(","))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself. Names other than localhost are not: a name server may return anything."""
    if host.lower() in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_address(
    address: str, encrypted: bool, allow_plain: bool, flags: tuple[str, str], any_port: bool = False
) -> None:
    """Raise ValueError for what is no address, and for plain text to or from other machines that nobody allowed.

    encrypted: there are CURVE keys. flags: how the user gives keys and allows plain text, for the message.
    """
    host = host_of(address, any_port)
    if encrypted or allow_plain or is_loopback(host):
        return
    keys, plain = flags
    raise ValueError(
        f"{address} is not on this machine's loopback and would be neither encrypted nor authenticated; "
        f"give {keys} (made by keygen), or {plain} on a network that you trust"
    )
