"""The socket at which a cluster's robots arrive: the one that a verifier has, keys and limits included."""

from __future__ import annotations

from cloud_verifier.config import Link
from cloud_verifier.mailbox import Mailbox


def open_post(link: Link) -> Mailbox:
    """Open it. Raises StartError for an address that cannot be bound or keys that cannot be used."""
    return Mailbox(link)
