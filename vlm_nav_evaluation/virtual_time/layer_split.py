"""SpecEdge's baseline: the first layers of the target on the edge, the rest in the cloud, one token a round trip.

Per token the edge computes its layers, one hidden state goes up, the cloud computes the others, one token comes down
(SpecEdge, Sec. 5.3: a quarter of the layers on the edge, autoregressive). It runs on virtual time alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_drafter import DecodingStats, StepResult
from speculation.pass_cost import Load
from speculation.wire import Commit, encode
from vlm_nav_evaluation.virtual_time.link import Channel
from vlm_nav_evaluation.virtual_time.recording import RecordedStep, Recording
from vlm_nav_evaluation.virtual_time.timeline import Timeline
from vlm_nav_evaluation.virtual_time.timings import Timings

LAYER_SPLIT = "layer_split"


@dataclass(frozen=True)
class LayerSplit:
    """How the target is split. Raises ValueError, naming the field."""

    share: float = 0.25
    """Of the layers on the edge."""
    slowdown: float = 1.0
    """The edge's time for a layer over the cloud's."""
    hidden_bytes: int = 2 * 3584
    """One token's hidden state: that of Qwen2-VL-7B in 16 bits."""
    prompt_tokens: int = 0
    """Tokens whose hidden states go up first."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise ValueError(f"layer split: share = {self.share} is outside 0 to 1")
        if not self.slowdown > 0.0 or self.hidden_bytes < 1 or self.prompt_tokens < 0:
            raise ValueError("layer split: slowdown and hidden_bytes must be positive, prompt_tokens not negative")

    def decode(self, recording: Recording, timings: Timings) -> list[StepResult]:
        """Decode all steps of a recording."""
        return [self._step(step, timings) for step in recording.steps]

    def _step(self, step: RecordedStep, timings: Timings) -> StepResult:
        timeline, stats = Timeline(), DecodingStats(mode=LAYER_SPLIT, tokens=len(step.tokens))
        up, down = Channel.pair(timeline, timings)
        in_cloud = 1.0 - self.share

        def send(channel: Channel, payload: bytes) -> None:
            timeline.sleep(channel.send(payload, lambda: None) - timeline.now)

        def run() -> None:
            stats.prefill_s = self.share * timings.cloud_prefill_s * self.slowdown
            timeline.sleep(stats.prefill_s)
            up.send(bytes(self.hidden_bytes * self.prompt_tokens), lambda: None)
            cloud_ready = timeline.now + timings.one_way_s + in_cloud * timings.cloud_prefill_s
            for place, token in enumerate(step.tokens):
                pass_s = timings.target_forward_s(Load.row(1, timings.prompt_tokens + place))
                cloud_s = in_cloud * pass_s
                timeline.sleep(self.share * pass_s * self.slowdown)
                send(up, bytes(self.hidden_bytes))
                timeline.sleep(max(0.0, cloud_ready - timeline.now))
                timeline.sleep(cloud_s)
                commit = Commit(1, 0, place, [token], bytes(8), place + 1 == len(step.tokens), compute_s=cloud_s)
                send(down, encode(commit))
                stats.server_compute_s += cloud_s
                if stats.first_commit_s is None:
                    stats.first_commit_s = timeline.now

        timeline.run([run])
        stats.rounds = stats.cloud_passes = len(step.tokens)
        stats.total_s, stats.bytes_up, stats.bytes_down = timeline.now, up.bytes, down.bytes
        return StepResult(step.tokens, stats)
