"""SpecEdge's baseline: the first layers of the target on the edge, the rest in the cloud, one token a round trip.

Per token the edge computes its layers, one hidden state goes up, the cloud computes the others, one token comes down
(SpecEdge, Sec. 5.3: a quarter of the layers on the edge, autoregressive). It runs on virtual
time alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.clocked.facts import Facts, Recording
from benchmarks.clocked.link import Channel
from benchmarks.clocked.timeline import Timeline
from benchmarks.clocked.timings import Timings
from edge_drafter import DecodingStats, StepResult
from speculation.wire import Commit, encode

LAYER_SPLIT = "layer_split"


@dataclass(frozen=True)
class LayerSplit:
    """share: of the layers on the edge. slowdown: the edge's time for a layer over the cloud's. hidden_bytes: one
    token's hidden state; that of Qwen2-VL-7B in 16 bits by default. prompt_tokens: whose hidden states go up first.
    """

    share: float = 0.25
    slowdown: float = 1.0
    hidden_bytes: int = 2 * 3584
    prompt_tokens: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise ValueError(f"layer split: share = {self.share} is outside 0 to 1")
        if not self.slowdown > 0.0 or self.hidden_bytes < 1 or self.prompt_tokens < 0:
            raise ValueError("layer split: slowdown and hidden_bytes must be positive, prompt_tokens not negative")

    def decode(self, recording: Recording, timings: Timings) -> list[StepResult]:
        """Decode all steps of a recording."""
        return [self._step(facts, timings) for facts in recording.steps]

    def _step(self, facts: Facts, timings: Timings) -> StepResult:
        timeline = Timeline()
        stats = DecodingStats(mode=LAYER_SPLIT, tokens=len(facts.tokens))
        timeline.run([lambda: self._run(facts, timings, timeline, stats)])
        stats.total_s = timeline.now
        return StepResult(facts.tokens, stats)

    def _run(self, facts: Facts, timings: Timings, timeline: Timeline, stats: DecodingStats) -> None:
        up, down = Channel.pair(timeline, timings)
        edge_s = self.share * timings.verify_s * self.slowdown
        cloud_s = (1.0 - self.share) * timings.verify_s

        def send(channel: Channel, payload: bytes) -> None:
            arrives = channel.send(payload, lambda: None)
            timeline.sleep(arrives - timeline.now)

        stats.prefill_s = self.share * timings.cloud_prefill_s * self.slowdown
        timeline.sleep(stats.prefill_s)
        up.send(bytes(self.hidden_bytes * self.prompt_tokens), lambda: None)
        cloud_ready = timeline.now + timings.one_way_s + (1.0 - self.share) * timings.cloud_prefill_s
        for place, token in enumerate(facts.tokens):
            timeline.sleep(edge_s)
            send(up, bytes(self.hidden_bytes))
            timeline.sleep(max(0.0, cloud_ready - timeline.now))
            timeline.sleep(cloud_s)
            commit = Commit(1, 0, place, [token], bytes(8), place + 1 == len(facts.tokens), compute_s=cloud_s)
            send(down, encode(commit))
            stats.rounds += 1
            stats.cloud_passes += 1
            stats.server_compute_s += cloud_s
            if stats.first_commit_s is None:
                stats.first_commit_s = timeline.now
        stats.bytes_up, stats.bytes_down = up.bytes, down.bytes
