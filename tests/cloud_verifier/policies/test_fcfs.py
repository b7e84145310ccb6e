"""First come, first served: the longest waiting first, one prefill at a time, company where it is cheap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.estimator import Estimator
from cloud_verifier.policies.prefill_chunks import LEAST
from speculation.pass_cost import Load
from speculation.wire import Idle
from tests.cloud_verifier.scheduling import Bench


class Line(Estimator):
    """A forward takes 1 s, and `token_s` each token, whatever is measured."""

    def __init__(self, token_s: float) -> None:
        super().__init__()
        self.token_s = token_s

    def seconds(self, load: Load) -> float:
        return 1.0 + self.token_s * load.new


def prefill_bench(token_s: float, length: int, **settings: object) -> Bench:
    """Return a bench where robot 0 decodes and robot 1, whose prompt is `length` tokens long, has its image encoded."""
    bench = Bench(**settings)  # type: ignore[arg-type]
    bench.scheduler.costs.passes = Line(token_s)
    bench.begin(0, idle=Idle.DECODE, max_tokens=200)
    bench.turn(), bench.turn()
    bench.begin(1, prompt="long ".ljust(length + 1, "x"))
    while not bench.step(1).prefill.encoded:
        bench.now += 1.0
        bench.run(bench.next())
    assert bench.step(1).prefill.left == length
    return bench


@given(token_s=st.floats(0.0, 2.0), length=st.integers(4, 400))
def test_a_forward_with_a_chunk_takes_at_most_twice_one_without(token_s: float, length: int) -> None:
    """A chunk is as large as that allows, or a block where that is more; meanwhile the other robot decodes."""
    bench = prefill_bench(token_s, length)
    most = max(LEAST, max(n for n in range(length + 1) if 1.0 + token_s * (n + 1) <= 2.0 * (1.0 + token_s)))
    while bench.step(1).pending:
        left = bench.step(1).prefill.left
        bench.turn()
        assert bench.engine.chunks[-1] == {1: min(left, most)}
        assert bench.engine.batches[-1] == ((0,) if bench.step(1).pending else (0, 1))
