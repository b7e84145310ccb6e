"""EdgeConfig: all that one robot decodes with, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from edge_drafter.config import START_GAMMA, DraftingConfig, Mode
from edge_drafter.route import check_verifier
from speculation.language.grammar import CONSTRAINED, FREE
from speculation.predictor import AUTO, OFF
from speculation.sampling import GREEDY, MAX_KEY, SamplingScheme
from speculation.service import INTERACTIVE, SERVICE_CLASSES, service_class
from speculation.settings import check, fields_of, from_flags
from speculation.vlm.settings import DEFAULT_SETTINGS, ModelSettings
from speculation.wire import MAX_ANSWER_TOKENS, MAX_DRAFT_TOKENS, MAX_FRAMES

MAX_RTT_S = 10.0
CAPACITY = 2048


class Connection(msgspec.Struct, frozen=True):
    """The way to the verifier."""

    verifier: Annotated[
        str, Meta(description="address of the verifier, or of a cluster's gateway; several are separated by commas")
    ] = "tcp://127.0.0.1:5555"
    keys: Annotated[str, Meta(description="folder of CURVE keys; empty: plain TCP, to this machine only")] = ""
    allow_plain: Annotated[bool, Meta(description="without keys, trust a verifier on another machine too")] = False
    target: Annotated[str, Meta(description="fingerprint that the verifier's target must have; empty: any")] = ""
    silence_s: Annotated[
        float, Meta(ge=0.2, le=60, description="seconds without a message that count as a lost link")
    ] = 1.5
    resume_s: Annotated[
        float, Meta(ge=0, le=60, description="seconds that a step waits for a lost or full verifier, then it gives up")
    ] = 1.0
    resume_elsewhere_s: Annotated[
        float,
        Meta(ge=0, le=60, description="the same, if more, where another verifier may go on: of a cluster, or a list"),
    ] = 10.0
    service_class: Annotated[
        str,
        Meta(
            description="how fast its answers must come, for a verifier that many robots share: "
            + ", ".join(f"{each.name} ({each.tokens_per_s:g} tokens/s)" for each in SERVICE_CLASSES.values())
        ),
    ] = INTERACTIVE.name
    scale_frames: Annotated[
        bool,
        Meta(
            description="larger frames are scaled, before they are sent, to the size in which the verifier's model "
            "sees them"
        ),
    ] = True
    link: Annotated[
        str,
        Meta(description="link of config/links.json to emulate, the profile's delay on top; empty: none"),
    ] = ""
    rtt_s: Annotated[
        Annotated[float, Meta(ge=0, le=MAX_RTT_S)] | None,
        Meta(description="declared round trip in seconds, in place of the profile's own"),
    ] = None
    extra_rtt_s: Annotated[
        float, Meta(ge=0, le=MAX_RTT_S, description="declared round trip on top of it, half of it each way")
    ] = 0.0

    def __post_init__(self) -> None:
        check(self)
        service_class(self.service_class)


class Decoding(msgspec.Struct, frozen=True):
    """How an answer is decoded."""

    mode: Annotated[str, Meta(description=f"one of {', '.join(mode.value for mode in Mode)}")] = Mode.FULL.value
    gamma: Annotated[
        int | str,
        Meta(description=f"draft tokens per verification: 0 to {MAX_DRAFT_TOKENS}, auto or balance"),
    ] = START_GAMMA
    drafting: Annotated[
        str, Meta(description="changes of a mode that drafts, NAME=VALUE,..., e.g. interrupt=off (docs/decoding.md)")
    ] = ""
    predictor: Annotated[
        str,
        Meta(description="folder of an acceptance predictor, which ends drafts; auto: the draft model's; off: none"),
    ] = AUTO
    fed_head: Annotated[
        str,
        Meta(
            description="folder of a fed head, which drafts from the target's features in the draft model's place "
            "wherever a verifier feeds it; off: the draft model drafts"
        ),
    ] = OFF
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_ANSWER_TOKENS, description="tokens of an answer at most")] = 128
    answers: Annotated[
        Literal["free", "constrained"],
        Meta(
            description=f"{CONSTRAINED}: masked by a grammar, so that each ends with a readable action or begins with "
            f"one; {FREE}: whatever the target says"
        ),
    ] = FREE

    def __post_init__(self) -> None:
        check(self)
        self.settings(self.mode)

    def settings(self, mode: Mode | str, **more: Any) -> DraftingConfig:
        """Return the drafting settings of `mode` with these changes. A mode that drafts nothing takes none."""
        return DraftingConfig.of(mode, self.drafting, gamma=self.gamma, **more)


class Draws(msgspec.Struct, frozen=True):
    """How tokens are sampled."""

    sampling: Annotated[
        str, Meta(description="greedy, coupled(temperature=0.7,top_k=50,top_p=0.9) or another rule (docs/decoding.md)")
    ] = GREEDY.text
    seed: Annotated[
        int,
        Meta(ge=0, le=MAX_KEY, description="of sampled answers; two decoders of one seed sample the n-th answer alike"),
    ] = 0

    def __post_init__(self) -> None:
        check(self)

    @property
    def settings(self) -> SamplingScheme:
        """The way to sample. Raises ValueError for one that cannot be read."""
        return SamplingScheme.parse(self.sampling)


class EdgeConfig(msgspec.Struct, frozen=True):
    """What one robot decodes with. Raises ValueError, naming the setting, for what cannot be used or does not fit."""

    draft_model: Annotated[Path, Meta(description="folder of the draft model, or its name on the hub")]
    draft: ModelSettings = DEFAULT_SETTINGS
    connection: Connection = Connection()
    decoding: Decoding = Decoding()
    draws: Draws = Draws()
    profile: Annotated[str, Meta(description="device profile whose times are waited for; raw: none")] = "raw"
    capacity: Annotated[
        int,
        Meta(
            ge=1, le=2**20, description="cache slots of the draft model: image, prompt, answer and token tree must fit"
        ),
    ] = CAPACITY
    frames: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_FRAMES,
            description="frames of a question: the newest, and before it those of the last views; more than one for "
            "models that take several",
        ),
    ] = 1
    text_only: Annotated[
        bool, Meta(description="the draft model is a language model alone, asked with an empty frame (benchmarks)")
    ] = False

    def __post_init__(self) -> None:
        check(self)
        if self.text_only and self.frames > 1:
            raise ValueError(f"frames is {self.frames} beside text_only: a language model alone sees none; give 1")
        drafting = self.decoding.settings(self.decoding.mode)
        drafting.check_sampling(self.draws.settings)
        if drafting.needs_link:
            # Here too, since the link is made after the models are loaded, which takes a minute on a robot.
            check_verifier(self.connection.verifier, bool(self.connection.keys), self.connection.allow_plain)

    @classmethod
    def flat(cls, draft_model: Path, **settings: Any) -> EdgeConfig:
        """Return the config with these settings by their names, wherever they are nested.

        Raises TypeError for an unknown name, ValueError as the config itself.
        """
        unknown = settings.keys() - {field.name for field in fields_of(cls)}
        if unknown:
            raise TypeError(f"EdgeConfig has no setting {', '.join(sorted(unknown))}")
        return from_flags(cls, {"draft_model": draft_model, **settings})

    def changed(self, **settings: Any) -> EdgeConfig:
        """Return the config with other values of these settings. Raises as `flat`."""
        return self.flat(**{**dict(_values(self)), **settings})


def _values(settings: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, msgspec.Struct):
            yield from _values(value)
        else:
            yield name, value
