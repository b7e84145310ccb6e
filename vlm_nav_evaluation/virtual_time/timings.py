"""Declares how long everything takes on virtual time, from a device profile or from a paper's table."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property

from speculation.links import LinkConditions, load_link
from speculation.pass_cost import PAPER_COSTS, Load, PassCost, load_cost
from speculation.profiles import DeviceProfile, load_profile, load_profiles

WITH_COST = "+"
"""Between the name of timings and that of a cost."""
FREE, DEFAULT_COST = "0", "wisp-32b"
"""The cost of loads that take nothing beyond what is declared; the one taken where none is named."""
COST_HELP = (
    "what a target forward's load costs, scaled to T_q: a file of profile-verifier, a model folder that has one, "
    f"{', '.join(PAPER_COSTS)}, or {FREE} for what is declared alone, nothing in the papers' columns "
    "(default: %(default)s)"
)
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
    """Added by each further token of a target forward; none beside a `cost`."""
    cost: PassCost | None = None
    """How target forwards grow with their load, a measured profile; None: by the one above alone. See `pass_cost`."""
    prompt_tokens: int = 0
    """Cache slots of image and prompt."""
    exit_s: float = 0.0
    """What one exit adds to the layer that it sits on."""
    edge_prefill_s: float = 0.0
    """Image and prompt on the edge, vision included."""
    cloud_prefill_s: float = 0.0
    one_way_s: float = 0.0
    """T_c: a message's way."""
    up_bits_per_s: float = 0.0
    """0 for no limit; messages leave one at a time."""
    down_bits_per_s: float = 0.0
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
        if self.cost is not None and self.verify_token_s:
            raise ValueError(
                f"timings {self.name!r}: verify_token_s = {self.verify_token_s} beside a cost, which has what tokens "
                f"take; give --cost {FREE}"
            )
        if self.link:
            load_link(self.link)

    @classmethod
    def of(cls, profile: DeviceProfile, **changes: float) -> Timings:
        """Return a device profile's times with `changes`."""
        names = ("name", "draft_s", "verify_s", "one_way_s", "server_draft_s")
        return cls(**{name: getattr(profile, name) for name in names} | changes)

    @cached_property
    def conditions(self) -> LinkConditions:
        """Return what the link does. Raises ValueError for an unknown one."""
        link = load_link(self.link).delayed(self.one_way_s)
        up = replace(link.up, rate_bps=self.up_bits_per_s or link.up.rate_bps)
        return replace(link, up=up, down=replace(link.down, rate_bps=self.down_bits_per_s or link.down.rate_bps))

    def with_server_draft(self) -> Timings:
        """Return timings in which mode server_sd has a draft forward: that of go2_a100 where none is declared."""
        return self if self.server_draft_s else replace(self, server_draft_s=load_profile("go2_a100").server_draft_s)

    def with_cost(self, name: str) -> Timings:
        """Return timings whose target forwards grow with their load as `name` has it (`load_cost`), or FREE.

        Raises ValueError for a cost that is unknown.
        """
        base = self.name.partition(WITH_COST)[0]
        return replace(self, name=f"{base}{WITH_COST}{name}", cost=None if name == FREE else load_cost(name))

    @cached_property
    def pass_cost(self) -> PassCost | None:
        """Return `cost`, scaled so that a forward over one token behind the prompt takes T_q; as it is without one."""
        if self.cost is None or not self.verify_s:
            return self.cost
        return self.cost.scaled(self.verify_s / self.cost.seconds(Load.row(1, self.prompt_tokens)))

    @property
    def load_words(self) -> str:
        """Return what the load of a target forward costs beside T_q, in words for a table's head."""
        cost = self.pass_cost
        if cost is None:
            token = self.verify_token_s / (self.verify_s or 1.0)
            return f"a target forward takes T_q; each further token {token:.3g} of it"
        one = cost.seconds(Load.row(1, self.prompt_tokens))
        token, pair, cached = (each / one for each in (cost.token_s, cost.interaction_s, cost.cached_s))
        return (
            f"a target forward takes {1e3 * one:.4g} ms; of that each further token {token:.3g}, query-key pair "
            f"{pair:.3g}, cached token {cached:.3g}"
        )

    @property
    def cost_words(self) -> str:
        """Return what one more token of a target forward costs, and by which cost, in words for a plot."""
        one, two = (self.target_forward_s(Load.row(tokens, self.prompt_tokens)) for tokens in (1, 2))
        words = f"each further token of a pass takes {(two - one) / (one or 1.0):.2%} of it"
        name = self.name.partition(WITH_COST)[2]
        return f"{words} ({name})" if name else words

    def __str__(self) -> str:
        return f"{self!r}\n{self.load_words}"

    def draft_forward_s(self, tokens: int) -> float:
        """Return the seconds of a draft forward over so many tokens, a chain or leaves."""
        return self.draft_s * (1.0 + self.draft_leaf * max(0, tokens - 1))

    def target_forward_s(self, load: Load) -> float:
        """Return the seconds of a target forward."""
        if self.pass_cost is not None:
            return self.pass_cost.seconds(load)
        return self.verify_s + self.verify_token_s * max(0, load.new - 1)


PAPERS = {
    name: Timings(name, gamma_draft_ms / 4e3, TABLE_9_LEAF, verify_ms / 1e3, one_way_s=way_ms / 1e3)
    for name, (gamma_draft_ms, verify_ms, way_ms) in {
        "go2": (288, 620, 120),
        "jetson_vicuna_7b": (334, 497, 95),
        "rtx_vicuna_7b": (102, 442, 42),
        "jetson_vicuna_13b": (1596, 616, 91),
        "rtx_vicuna_13b": (555, 618, 46),
        "jetson_llama2_7b": (301, 522, 96),
        "rtx_llama2_7b": (99, 467, 47),
    }.items()
}
"""The columns of Early Exits' Tables 8(a) and 5: drafting 4 tokens, T_q and T_c in milliseconds, by client (a Go2's
Jetson Orin, Jetson Nano, RTX 2080 Ti) and target; the server is an A100."""


def load_timings(name: str, cost: str = DEFAULT_COST) -> Timings:
    """Return the timings of a paper's table or of a device profile, with what loads cost.

    cost: as in `Timings.with_cost`, where the name has none of its own, as `go2+wisp-32b` has. Where no T_q is declared
    the default is FREE. Raises ValueError, with the known names.
    """
    base, _, own = name.partition(WITH_COST)
    known = PAPERS | {profile.name: Timings.of(profile) for profile in load_profiles().values()}
    if base not in known:
        raise ValueError(f"timings {base!r} are unknown; choose {', '.join(known)}")
    if not own and cost == DEFAULT_COST and not known[base].verify_s:
        own = FREE
    return known[base].with_cost(own or cost)
