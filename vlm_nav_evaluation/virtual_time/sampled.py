"""Answers sampled from declared distributions, on virtual time: every scheme's own bytes over a vocabulary's full size.

A recording holds the likeliest tokens alone. Here target and draft are two distributions whose overlap is the
acceptance asked for, the same at every place; the sampling schemes, the wire, the edge's and the verifier's policies
are production's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cloud_verifier.server import Server
from cloud_verifier.work import Row
from edge_drafter import Drafter, DraftingConfig, StepRequest, StepResult, sources_of
from speculation.acceptance import Verdict
from speculation.distributions import Logits
from speculation.profiles import DeviceProfile
from speculation.sampling import SamplingScheme
from speculation.wire import Hello, Welcome
from vlm_nav_evaluation.virtual_time.decoding import SERVER
from vlm_nav_evaluation.virtual_time.link import VirtualLink, VirtualMailbox
from vlm_nav_evaluation.virtual_time.models import RecordedDraftModel, RecordedEngine
from vlm_nav_evaluation.virtual_time.recording import RecordedStep, Recording
from vlm_nav_evaluation.virtual_time.timeline import Timeline
from vlm_nav_evaluation.virtual_time.timings import Timings

EOS = 0
NEVER = -60.0
"""Logit of a token that is not to come; `top_k` leaves it out."""
SILENT_S = 3600.0
"""No draft is sent again, and no link is lost, because a message takes long to leave."""


@dataclass(frozen=True)
class SampledPair:
    """Two distributions p and q of which sum min(p, q), the acceptance of rejection sampling, is `acceptance`.

    Both are `acceptance` times a common part, a power law over the ranks; the rest is on the odd ranks in p, on the
    even ones in q. Ranks are spread over the vocabulary at random. Raises ValueError, naming the field.
    """

    acceptance: float
    vocabulary: int = 50_272
    support: int = 0
    """Tokens that have a probability, as after top-k; 0: all but the one that ends an answer."""
    exponent: float = 1.5
    """Of the power law: 1.5 leaves 14 % to all but the 32 likeliest tokens. Bytes of whole distributions and acceptance
    do not depend on it, what `sparse` fetches does."""
    seed: int = 0

    def __post_init__(self) -> None:
        limits = {
            "acceptance": (0.0 < self.acceptance < 1.0, "outside 0 to 1"),
            "vocabulary": (4 <= self.vocabulary <= 2**20, f"outside 4 to {2**20}"),
            "support": (self.support == 0 or 2 <= self.support < self.vocabulary, "neither 0 nor 2 to the vocabulary"),
            "exponent": (self.exponent >= 0.0, "below 0"),
        }
        for name, (fits, why) in limits.items():
            if not fits:
                raise ValueError(f"sampled pair: {name} = {getattr(self, name)} is {why}")

    @cached_property
    def logits(self) -> tuple[Logits, Logits]:
        """Log probabilities of target and draft [vocabulary], float32."""
        count = self.support or self.vocabulary - 1
        ids = 1 + np.random.default_rng(self.seed).permutation(self.vocabulary - 1)[:count]
        law = np.arange(1, count + 1, dtype=np.float64) ** -self.exponent
        common = self.acceptance * law / law.sum()
        rows = []
        for parity in (0, 1):
            own = np.where(np.arange(count) % 2 == parity, law, 0.0)
            row = np.full(self.vocabulary, NEVER, dtype=np.float32)
            row[ids] = np.log(common + (1.0 - self.acceptance) * own / own.sum())
            rows.append(row)
        return rows[0], rows[1]

    def recording(self, max_tokens: int) -> Recording:
        """Return a recording of one step about which nothing is recorded; models count a column more than it has."""
        nothing = np.zeros((0, 1))
        step = RecordedStep("", 0, (), nothing.astype(np.int32), nothing, nothing)
        return Recording((step,), self.vocabulary - 1, (EOS,), 1, (), max_tokens)


class _Target(RecordedEngine):
    pair: SampledPair

    def _final_verdict(self, row: Row) -> Verdict:
        logits = np.broadcast_to(self.pair.logits[0], (len(row.tokens) + 1, self.pair.vocabulary))
        return row.rule().judge(row.tokens, row.parents, logits, row.draws)


class _Draft(RecordedDraftModel):
    pair: SampledPair

    def _row(self, prefix: object) -> Logits:
        return self.pair.logits[1]


def sampled_answers(
    pair: SampledPair,
    timings: Timings,
    config: DraftingConfig,
    sampling: SamplingScheme,
    keys: Sequence[int],
    tokens: int = 128,
) -> list[StepResult]:
    """Decode an answer of so many tokens for each key, one after another; the same arguments give the same results."""
    timeline = Timeline()
    mailbox = VirtualMailbox(timeline)
    recording = pair.recording(tokens)
    engine = _Target(recording, timings, timeline.sleep)
    engine.pair = pair
    verifier = Server(
        engine, SERVER, DeviceProfile(timings.name), mailbox, clock=timeline.clock, cost=timings.pass_cost
    )
    results: list[StepResult] = []

    def edge() -> None:
        link = VirtualLink(timeline, timings, mailbox, b"edge")
        link.send(Hello(engine.model.tokenizer_fingerprint, pair.vocabulary, sampling=sampling.text))
        welcome = link.receive(float("inf"))
        if not isinstance(welcome, Welcome):
            raise RuntimeError(f"the verifier answers Hello with {welcome}")
        draft = _Draft(recording, timings, timeline.sleep, link.wait_for_message)
        draft.pair = pair
        drafter = Drafter(sources_of(config, draft), link, config, timeline.clock, max_draft=welcome.max_draft)
        for number, key in enumerate(keys, start=1):
            request = StepRequest(number, "sampled", recording.image(0), (EOS,), tokens, sampling=sampling, key=key)
            results.append(drafter.run(request))

    timeline.run([edge], [verifier.run])
    return results
