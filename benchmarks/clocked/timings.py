"""How long everything takes on virtual time: a frozen declaration, from a device profile or from a paper's table."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property

from benchmarks.analytic.early_exits import SYSTEMS
from speculation.links import LinkConditions, load_link
from speculation.profiles import DeviceProfile, load_profiles

TABLE_9_LEAF = 0.0223
"""Share of a draft forward that every further leaf adds: 8 leaves take 15.6 % longer (Early Exits, Appendix C, Table 9:
8.97 ms against 7.76 ms on a Jetson; 16 leaves by this rule 33 %, measured 37 %)."""


@dataclass(frozen=True)
class Timings:
    """Durations in seconds. Raises ValueError, naming the field, for one that is negative or not finite.

    draft_s: a draft forward that feeds one token (T_p); each further token of the forward adds the share `draft_leaf`.
    verify_s: a target forward (T_q); each token behind the first adds `verify_token_s`, each further session
    `verify_row_s`. exit_s: what one exit adds to the layer that it sits on. layer_shares: how T_q spreads over the
    layers, any positive weights; empty: evenly. edge_prefill_s, cloud_prefill_s: image and prompt, vision included.
    one_way_s: a message's way (T_c). up_bits_per_s, down_bits_per_s: 0 for no limit; messages leave one at a time.
    sync_s: passes on the edge when a commit hits (T_r). server_draft_s, server_draft_prefill_s: a forward and a prefill
    of a draft model beside the target, whatever the batch (mode server_sd). link: name of a link in config/links.json,
    empty for none: `one_way_s` comes on top of its delays, a rate given here replaces its own.
    """

    name: str = "custom"
    draft_s: float = 0.0
    draft_leaf: float = 0.0
    verify_s: float = 0.0
    verify_token_s: float = 0.0
    verify_row_s: float = 0.0
    exit_s: float = 0.0
    layer_shares: tuple[float, ...] = ()
    edge_prefill_s: float = 0.0
    cloud_prefill_s: float = 0.0
    one_way_s: float = 0.0
    up_bits_per_s: float = 0.0
    down_bits_per_s: float = 0.0
    sync_s: float = 0.0
    server_draft_s: float = 0.0
    server_draft_prefill_s: float = 0.0
    link: str = ""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, float | int) and not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"timings {self.name!r}: {each.name} = {value} must be finite and not negative")
        if self.layer_shares and not (min(self.layer_shares) >= 0.0 and sum(self.layer_shares) > 0.0):
            raise ValueError(f"timings {self.name!r}: layer_shares {self.layer_shares} must be weights, not all 0")
        if self.link:
            load_link(self.link)

    @classmethod
    def of(cls, profile: DeviceProfile, **changes: float) -> Timings:
        """Return a device profile's times with `changes`."""
        base = cls(
            profile.name,
            profile.draft_s,
            0.0,
            profile.verify_s,
            one_way_s=profile.one_way_s,
            server_draft_s=profile.server_draft_s,
        )
        return replace(base, **changes)  # type: ignore[arg-type]

    @cached_property
    def conditions(self) -> LinkConditions:
        """What the link does. Raises ValueError for an unknown one."""
        link = load_link(self.link).delayed(self.one_way_s)
        up = replace(link.up, rate_bps=self.up_bits_per_s or link.up.rate_bps)
        return replace(link, up=up, down=replace(link.down, rate_bps=self.down_bits_per_s or link.down.rate_bps))

    def draft_forward_s(self, tokens: int) -> float:
        """Return the seconds of a draft forward over so many tokens, a chain or leaves."""
        return self.draft_s * (1.0 + self.draft_leaf * max(0, tokens - 1))

    def target_forward_s(self, batch: int, tokens: int) -> float:
        """Return the seconds of a target forward: `batch` sessions, `tokens` in all, each session's root among them."""
        return self.verify_s + self.verify_token_s * max(0, tokens - 1) + self.verify_row_s * max(0, batch - 1)

    def layer_ends(self, layers: int) -> tuple[float, ...]:
        """Return the part of a target forward that is over after each of `layers` layers, rising to 1.

        Raises ValueError where `layer_shares` is for another number of layers.
        """
        if not self.layer_shares:
            return tuple((layer + 1) / layers for layer in range(layers))
        if len(self.layer_shares) != layers:
            raise ValueError(
                f"timings {self.name!r}: layer_shares has {len(self.layer_shares)} weights, the target {layers} layers"
            )
        total = sum(self.layer_shares)
        return tuple(sum(self.layer_shares[: layer + 1]) / total for layer in range(layers))


PAPERS = {
    name: Timings(name, system.draft_s, TABLE_9_LEAF, system.verify_s, one_way_s=system.one_way_s)
    for name, system in SYSTEMS.items()
}
"""The columns of Early Exits' Tables 5 and 8(a)."""


def load_timings(name: str) -> Timings:
    """Return the timings of a paper's table or of a device profile. Raises ValueError, with the known names."""
    profiles = load_profiles()
    if name in PAPERS:
        return PAPERS[name]
    if name in profiles:
        return Timings.of(profiles[name])
    raise ValueError(f"timings {name!r} are unknown; choose {', '.join((*PAPERS, *profiles))}")
