"""The socket at which a cluster's robots arrive: the one that a verifier has, keys and limits included."""

from __future__ import annotations

from cloud_verifier.config import Link
from cloud_verifier.door.supervisor import Door


def open_post(link: Link, bytes_per_s: float = 0.0) -> Door:
    """Open it. `bytes_per_s`: as of `Quotas`.

    Raises StartError for an address that cannot be bound or keys that cannot be used.
    """
    return Door(link.bind, link.keys, link.allow_plain, bytes_per_s)
