"""How long everything takes on virtual time: a frozen declaration, from a device profile or from a paper's table."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property

from evaluation.formulas import SYSTEMS
from speculation.links import LinkConditions, load_link
from speculation.pass_cost import Load, PassCost
from speculation.profiles import DeviceProfile, load_profile, load_profiles

TABLE_9_LEAF = 0.0223
"""Share of a draft forward that every further leaf adds: 8 leaves take 15.6 % longer (Early Exits, Appendix C, Table 9:
8.97 ms against 7.76 ms on a Jetson; 16 leaves by this rule 33 %, measured 37 %)."""


@dataclass(frozen=True)
class Timings:
    """Durations in seconds. Raises ValueError, naming the field, for one that is negative or not finite."""

    name: str = "custom"
    draft_s: float = 0.0
    """T_p: a draft forward that feeds one token."""
    draft_leaf: float = 0.0
    """Share of `draft_s` that each further token of a forward adds."""
    verify_s: float = 0.0
    """T_q: a target forward over one token."""
    verify_token_s: float = 0.0
    """Added by each further token of a target forward."""
    verify_row_s: float = 0.0
    """Added by each further session in it."""
    cost: PassCost | None = None
    """A measured profile of target forwards, in place of the three above."""
    prompt_tokens: int = 0
    """Cache slots of image and prompt."""
    exit_s: float = 0.0
    """What one exit adds to the layer that it sits on."""
    layer_shares: tuple[float, ...] = ()
    """How T_q spreads over the layers, any positive weights; empty: evenly."""
    edge_prefill_s: float = 0.0
    """Image and prompt on the edge, vision included."""
    cloud_prefill_s: float = 0.0
    one_way_s: float = 0.0
    """T_c: a message's way."""
    up_bits_per_s: float = 0.0
    """0 for no limit; messages leave one at a time."""
    down_bits_per_s: float = 0.0
    sync_s: float = 0.0
    """T_r: passes on the edge when a commit hits."""
    server_draft_s: float = 0.0
    """A forward of a draft model beside the target, whatever the batch (mode server_sd)."""
    server_draft_prefill_s: float = 0.0
    link: str = ""
    """A link in config/links.json, empty for none: `one_way_s` is added to its delays, a rate given here replaces its
    own."""

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
        names = ("name", "draft_s", "verify_s", "one_way_s", "server_draft_s")
        return cls(**{name: getattr(profile, name) for name in names} | changes)

    @cached_property
    def conditions(self) -> LinkConditions:
        """What the link does. Raises ValueError for an unknown one."""
        link = load_link(self.link).delayed(self.one_way_s)
        up = replace(link.up, rate_bps=self.up_bits_per_s or link.up.rate_bps)
        return replace(link, up=up, down=replace(link.down, rate_bps=self.down_bits_per_s or link.down.rate_bps))

    def with_server_draft(self) -> Timings:
        """Return timings in which mode server_sd has a draft forward: that of go2_a100 where none is declared."""
        return self if self.server_draft_s else replace(self, server_draft_s=load_profile("go2_a100").server_draft_s)

    def draft_forward_s(self, tokens: int) -> float:
        """Return the seconds of a draft forward over so many tokens, a chain or leaves."""
        return self.draft_s * (1.0 + self.draft_leaf * max(0, tokens - 1))

    def target_forward_s(self, load: Load) -> float:
        """Return the seconds of a target forward."""
        if self.cost is not None:
            return self.cost.seconds(load)
        return self.verify_s + self.verify_token_s * max(0, load.new - 1) + self.verify_row_s * max(0, load.rows - 1)

    def layer_ends(self, layers: int) -> tuple[float, ...]:
        """Return the part of a target forward that is over after each of `layers` layers, rising to 1.

        Raises ValueError where `layer_shares` is for another number of layers.
        """
        shares = self.layer_shares or (1.0,) * layers
        if len(shares) != layers:
            raise ValueError(
                f"timings {self.name!r}: layer_shares has {len(shares)} weights, the target {layers} layers"
            )
        return tuple(sum(shares[: layer + 1]) / sum(shares) for layer in range(layers))


PAPERS = {
    name: Timings(name, system.draft_s, TABLE_9_LEAF, system.verify_s, one_way_s=system.one_way_s)
    for name, system in SYSTEMS.items()
}
"""The columns of Early Exits' Tables 5 and 8(a)."""


def load_timings(name: str) -> Timings:
    """Return the timings of a paper's table or of a device profile. Raises ValueError, with the known names."""
    known = PAPERS | {profile.name: Timings.of(profile) for profile in load_profiles().values()}
    if name not in known:
        raise ValueError(f"timings {name!r} are unknown; choose {', '.join(known)}")
    return known[name]
