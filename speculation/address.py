"""Addresses of verifiers, and the one rule about plain text: without keys only to and from this machine itself.

Without keys the other end is not authenticated, and it moves the robot. Both sides apply the rule.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading

RESOLVE_S = 3.0
"""How long a name server may take."""


def host_of(address: str, any_port: bool = False) -> str:
    """Return HOST of tcp://HOST:PORT, and nothing for ipc://PATH. Raises ValueError, with an example, for no address.

    An IPv6 address stands in brackets, with its zone where it is link-local: tcp://[fe80::1%eth0]:5555. any_port: the
    port may be *, as where a server takes a free one.
    """
    scheme, _, rest = address.partition("://")
    if scheme == "ipc" and rest:
        return ""
    host, _, port = rest.rpartition(":")
    if ":" in host and "[" not in host and _is_ip(host):
        raise ValueError(f"{address!r}: an IPv6 address stands in brackets; write tcp://[{host}]:{port}")
    is_host = bool(host) and (":" in host and _is_ip(host[1:-1]) if is_v6(host) else not set(":[]") & set(host))
    if scheme != "tcp" or not is_host or not ((any_port and port == "*") or (port.isdecimal() and int(port) < 65536)):
        raise ValueError(f"{address!r} is no address; write tcp://HOST:PORT, for example tcp://127.0.0.1:5555")
    return host


def is_v6(host: str) -> bool:
    """Whether a host is written as an IPv6 address in brackets; ZeroMQ needs to know."""
    return host.startswith("[") and host.endswith("]")


def bracketed(host: str) -> str:
    """Return a host as it stands in an address: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not is_v6(host) else host


def resolve(host: str, limit_s: float = RESOLVE_S) -> list[str]:
    """Return the addresses that a host's name has, as they stand in an address: IPv4 first; of an address, itself.

    Raises ValueError, with what to do, where it has none, or no name server has answered within `limit_s` seconds.
    """
    if _is_ip(host.strip("[]")):
        return [host]
    found: list[tuple[int, str]] = []

    def ask() -> None:
        with contextlib.suppress(OSError, UnicodeError):
            for family, *_, place in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
                found.append((family, socket.getnameinfo(place, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]))

    # A name server that is away is waited for, in C, for as long as the system likes.
    asking = threading.Thread(target=ask, name="resolve", daemon=True)
    asking.start()
    asking.join(limit_s)
    places = [place for family in (socket.AF_INET, socket.AF_INET6) for its, place in list(found) if its == family]
    if not places:
        raise ValueError(f"the name {host} does not resolve: check its spelling or DNS")
    return [bracketed(place) for place in dict.fromkeys(places)]


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


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
