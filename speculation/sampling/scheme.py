"""A way to sample: what every scheme implements, on the edge, on the wire and in the cloud (numpy, no torch).

A scheme is one file beside this one and one entry in the table of `speculation.sampling`. It is a struct of its
parameters, and owns three things. Its *draft half* (`DraftSampler`) makes draft tokens of a draft model's logits, on
the edge, and remembers what it needs. Its *evidence* is what a `wire.Draft` carries besides tokens. Its *verdict half*
(`AcceptanceRule`) is what the target, and each exit, makes of a draft. The defaults here are those of a scheme whose
drafts are tokens alone: it has to write `pick`, and a draft half where the draft model's own order will not do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from speculation.acceptance import Verdict, walk_rows
from speculation.distributions import Logits
from speculation.sampling.noise import FIRST_DRAWS, StepDraws, Tokens
from speculation.settings import fields_of
from speculation.wire import MAX_DRAFT_TOKENS, BeginStep, Draft, Idle, Masses, extend_digest

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
MAX_TOP_K = 2**20
_EXAMPLE = "(temperature=0.7,top_k=50,top_p=0.9)"
_TEXT = re.compile(r"(?P<name>[a-z]+)\((?P<fields>[^()]*)\)")
_OFF = {"top_k": 0, "top_p": 1.0}
"""Values that `SamplingScheme.text` leaves out."""

Evidence: TypeAlias = tuple[Any, ...]
"""What a scheme judges a draft's tokens by besides the tokens: an entry each, which only the scheme reads, or none."""


class AcceptanceRule(Protocol):
    """Judges drafts; one object may judge many where tokens are all that it needs."""

    def judge(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        logits: Logits,
        draws: StepDraws = FIRST_DRAWS,
        ids: Tokens | None = None,
    ) -> Verdict:
        """Judge a draft tree of n nodes by the target's (or an exit's) logits [n + 1, vocabulary].

        Tree, logits and `ids` are as in `acceptance.walk_rows`. `draws` names the random draws of row 0: the answer's
        key and the answer position of the token after the root. Raises ValueError for a malformed tree or logits that
        are not finite.
        """
        ...


class Prefix:
    """An answer up to a place: `position` is that of the next token, 0 for the first."""

    __slots__ = ("_above", "_digest", "_token", "position")

    def __init__(self, position: int, digest: bytes) -> None:
        """`digest` names the answer so far, see `wire.begin_digest`."""
        self.position = position
        self._digest: bytes | None = digest
        self._above: Prefix | None = None
        self._token = 0

    def after(self, token: int) -> Prefix:
        """Return the answer with one more token. Its digest is computed at its first use."""
        longer = Prefix(self.position + 1, b"")
        longer._digest, longer._above, longer._token = None, self, token
        return longer

    @property
    def digest(self) -> bytes:
        """The digest that names it."""
        unnamed: list[Prefix] = []
        prefix = self
        while prefix._digest is None and prefix._above is not None:
            unnamed.append(prefix)
            prefix = prefix._above
        digest = prefix._digest or b""
        for prefix in reversed(unnamed):
            digest = prefix._digest = extend_digest(digest, [prefix._token])
            prefix._above = None
        return digest


class DraftSampler:
    """The draft half of a scheme, made anew for every answer."""

    def rank(self, logits: Logits, prefix: Prefix) -> Logits:
        """Return a row [vocabulary] in whose order tokens are drafted behind a prefix, of the draft model's logits.

        The largest is the draft's own token. -inf for tokens that may not be drafted. The same for the same prefix,
        however often it is asked for. Not in place: the model keeps its logits.
        """
        return logits

    def forget_all_but(self, prefixes: Sequence[Prefix]) -> None:
        """Drop what is remembered of other places than these: the answer went on without them."""

    def attach(self, draft: Draft) -> Draft:
        """Return a draft with its evidence. Raises ValueError for evidence that no message can take."""
        return draft

    def finish(self, digest: bytes, rest: Masses) -> int | None:
        """Return the token that a commit left to the edge behind the answer with this digest; None: `rest` is not
        enough, it must be fetched whole.

        Raises ValueError where there is nothing to sample it from.
        """
        raise ValueError("Commit.rest came to an answer whose sampling leaves no token to the edge")


class SamplingScheme(msgspec.Struct, frozen=True):
    """How tokens are sampled from logits: a scheme with its parameters. Temperature, top-k and top-p come in this
    order, ties as in transformers: tokens as likely as the k-th all stay.

    Raises ValueError, naming field and limit.
    """

    name: ClassVar[str]
    """Name in settings and on the wire, in small letters."""
    random: ClassVar[bool] = True
    """Whether tokens are sampled at random; temperature is above 0 then, and else 0."""
    one_chain: ClassVar[bool] = False
    """Whether it judges nothing but chains that its own draft half sampled on the edge, every place once: no trees, no
    tokens from elsewhere, no drafts ahead of the answer, none in place of another, no decoding where drafts come."""
    on_device: ClassVar[bool] = False
    """Whether its verdict is the walk along `distribution.choose` of every row, which a device makes without sending
    logits to the host (`speculation.vlm.sampling`)."""
    note: ClassVar[str] = ""
    """A note for the operator who chooses it; logged once."""

    temperature: Annotated[float, Meta(description="0 (greedy), or 0.01 to 100")] = 0.0
    top_k: Annotated[int, Meta(description="only so many likeliest tokens, 0 for all")] = 0
    top_p: Annotated[float, Meta(description="only the likeliest that together reach this probability, 1 for all")] = (
        1.0
    )

    def __post_init__(self) -> None:
        if self.random and self.temperature == 0.0:
            raise ValueError(f"sampling: {self.name} draws at random; give a temperature above 0, or greedy")
        if self.temperature != 0.0 and not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            raise ValueError(
                f"sampling: temperature is {self.temperature:g}; give 0 (greedy) or "
                f"{MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
            )
        if not self.random and self.temperature != 0.0:
            raise ValueError(f"sampling: {self.name} has temperature 0, not {self.temperature:g}")
        if not 0 <= self.top_k <= MAX_TOP_K:
            raise ValueError(f"sampling: top_k is {self.top_k}; give 0 (all tokens) to {MAX_TOP_K}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"sampling: top_p is {self.top_p:g}; give more than 0, up to 1 (all tokens)")

    @property
    def greedy(self) -> bool:
        """Whether nothing is random: temperature 0."""
        return self.temperature == 0.0

    @property
    def text(self) -> str:
        """The canonical text, as in `Hello.sampling`; what is off is left out."""
        if not self.random:
            return self.name
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        fields = ",".join(f"{name}={value!r}" for name, value in given.items() if _OFF.get(name) != value)
        return f"{self.name}({fields})"

    @staticmethod
    def parse(text: str) -> SamplingScheme:
        """Return the scheme that a text names. Raises ValueError, naming the field and its limit."""
        text = text.strip()
        plain = SCHEMES.get(text)
        if plain is not None and not plain.random:
            return plain()
        match = _TEXT.fullmatch(text)
        scheme = None if match is None else SCHEMES.get(match["name"])
        if match is None or scheme is None or not scheme.random:
            raise ValueError(f"sampling {text[:80]!r} is unknown; give {form()}")
        known = {field.name: field.kind for field in fields_of(scheme)}
        found: dict[str, Any] = {}
        for field in match["fields"].split(","):
            name, equals, value = (part.strip() for part in field.partition("="))
            if not equals or name not in known:
                raise ValueError(f"sampling: {field.strip()[:40]!r} is no field; known are {', '.join(known)}")
            if name in found:
                raise ValueError(f"sampling: {name} is given twice")
            try:
                found[name] = known[name](value)
            except ValueError:
                raise ValueError(f"sampling: {name} is {value[:40]!r}, no number; give {form()}") from None
        if "temperature" not in found:
            raise ValueError(f"sampling {text[:80]!r} names no temperature; give {form()}")
        return scheme.of(**found)

    @classmethod
    def of(cls, **fields: Any) -> SamplingScheme:
        """Return the scheme with these parameters, as a text gives them."""
        return cls(**fields)

    @property
    def alone(self) -> SamplingScheme:
        """The scheme by whose draft half a model samples that answers alone, where nobody verifies."""
        return self

    # --- on the edge

    def sampler(self, key: int) -> DraftSampler | None:
        """Return the draft half for the answer whose random draws have this key.

        None: the likeliest tokens are drafted, whatever the target samples.
        """
        return None

    def draft_limit(self, vocabulary: int) -> int:
        """Return how many tokens one draft can carry."""
        return MAX_DRAFT_TOKENS

    # --- in the cloud

    def check_begin(self, begin: BeginStep) -> None:
        """Raise ValueError where a step asks for drafts that this scheme cannot judge."""
        if self.one_chain and (begin.idle is Idle.LEDGER or begin.self_draft or begin.hints):
            raise ValueError(
                f"sampling {self.name} excludes idle decoding, hints and drafts of the verifier's own; begin the "
                "step with idle WAIT, or DECODE without drafts"
            )

    def read(self, draft: Draft, vocabulary: int, idle: Idle = Idle.WAIT) -> Evidence:
        """Return the evidence that came with a draft. `idle` is its step's.

        Raises ValueError, naming the field, where a draft does not carry what it is judged by, or more than that.
        """
        if draft.chosen or draft.whole or draft.drawn is not None:
            raise ValueError(f"Draft.chosen, whole and drawn are for rejection sampling, not for {self.text}")
        return ()

    def rule(self, digest: bytes, evidence: Evidence, early: bool = False) -> AcceptanceRule:
        """Return what judges a draft behind the answer with this digest, at the last layer or `early`, at an exit."""
        return self

    def judge(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        logits: Logits,
        draws: StepDraws = FIRST_DRAWS,
        ids: Tokens | None = None,
    ) -> Verdict:
        """Walk from the root to the child that `pick` names until there is none; see `AcceptanceRule.judge`."""
        return walk_rows(tokens, parents, logits, lambda row, depth: self.pick(row, draws.ahead(depth), ids), ids)

    def pick(self, row: Logits, draws: StepDraws, ids: Tokens | None = None) -> tuple[int, float]:
        """Return the column that the target samples from a row of logits [n], and its probability.

        `ids` are the tokens of the columns (ascending), where the row is no whole vocabulary.
        """
        raise NotImplementedError(f"sampling {self.name} does not define what the target samples")


SCHEMES: dict[str, type[SamplingScheme]] = {}
"""The table of all schemes by name; `speculation.sampling` fills it."""


def form() -> str:
    """Return what `SamplingScheme.parse` takes, in words."""
    fixed = [name for name, scheme in SCHEMES.items() if not scheme.random]
    first, *others = (name for name, scheme in SCHEMES.items() if scheme.random)
    *most, last = others
    return f"{', '.join(fixed)}, {first}{_EXAMPLE}, or {', '.join(most)} or {last} in place of {first}"
