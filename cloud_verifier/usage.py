"""Counts what steps cost: tokens, passes, seconds."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_verifier.choice import Act


@dataclass
class Usage:
    """A usage is what a step, or several, cost."""

    tokens: int = 0
    passes: int = 0
    hinted: int = 0
    """How many of the passes verified a hint."""
    decoded: int = 0
    """How many of the passes verified nothing."""
    waited_s: float = 0.0
    """How long the ledger waited for drafts."""
    prefill_s: float = 0.0
    """What decoding the frame and the prefill took."""

    def __str__(self) -> str:
        verified = self.passes - self.hinted - self.decoded
        return (
            f"tokens={self.tokens} passes={self.passes} tau={self.tau:.2f} verified={verified} "
            f"hinted={self.hinted} decoded={self.decoded} waited={self.waited_s * 1e3:.1f}ms "
            f"prefill={self.prefill_s * 1e3:.1f}ms"
        )

    @property
    def tau(self) -> float:
        """Return the tokens per pass, 0 before the first."""
        return self.tokens / self.passes if self.passes else 0.0

    def count(self, act: Act, tokens: int) -> None:
        """Enter a pass that committed so many tokens."""
        self.passes += 1
        self.tokens += tokens
        self.hinted += act is Act.HINT
        self.decoded += act is Act.DECODE
