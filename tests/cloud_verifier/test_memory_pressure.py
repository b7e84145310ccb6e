"""A real tiny target whose memory holds few of its robots' steps: answers are the target's own, bit for bit.

Prompts begin alike, so that rows share blocks while others of theirs are taken, freed and evicted.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from cloud_verifier.config import ServerConfig, StartError
from cloud_verifier.engine import VlmEngine, cache_blocks
from speculation.vlm.blocks import blocks_for
from speculation.vlm.cache import KVCache
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import (
    BeginStep,
    Hello,
)
from tests.cloud_verifier.bench import Bench, Robot
from tests.cloud_verifier.fake_target import FakeEngine
from tests.cloud_verifier.test_engine import CAPACITY, PROMPTS, jpeg

TOKENS, MAX_DRAFT = 12, 8
STEPS = [(prompt, jpeg(number)) for number, prompt in enumerate([*PROMPTS, PROMPTS[0], PROMPTS[1]])]


@pytest.fixture(scope="module")
def talkative(target: Vlm) -> Vlm:
    """The tiny target with a long system prompt before the image."""
    words = "<|im_start|>system\n" + "You walk slowly and look at everything." + "<|im_end|>\n"
    return replace(target, processor=replace(target.processor, template=words + target.processor.template))


@pytest.fixture(scope="module")
def truths(talkative: Vlm) -> list[list[int]]:
    return [
        [token for token, _ in VlmSession(talkative, CAPACITY).greedy(prompt, image, TOKENS)] for prompt, image in STEPS
    ]


def need(vlm: Vlm) -> int:
    """Return the most blocks that one of the steps needs."""
    engine = VlmEngine(vlm, 1, CAPACITY, max_draft=MAX_DRAFT)
    return max(blocks_for(engine.size(engine.prepare(*step)) + TOKENS + MAX_DRAFT) for step in STEPS)


@pytest.mark.parametrize(("steps", "seed", "policy"), [(1.0, 0, "full_budget"), (2.3, 1, "fcfs")])
def test_answers_are_the_targets_own_when_memory_is_short(
    talkative: Vlm, truths: list[list[int]], steps: float, seed: int, policy: str
) -> None:
    config = ServerConfig.of(Path("target"), max_sessions=8, max_draft=MAX_DRAFT, idle_s=86400.0, policy=policy)
    engine = VlmEngine(talkative, 8, CAPACITY, max_draft=MAX_DRAFT, blocks=int(steps * need(talkative)))
    bench = Bench(config, engine=cast("FakeEngine", engine))
    hello = Hello(engine.model.tokenizer_fingerprint, engine.model.vocabulary)
    robots = [
        Robot(bench, f"robot {number}", BeginStep(1, *question, max_tokens=TOKENS), truth, dice, hello)
        for number, (question, truth) in enumerate(zip(STEPS, truths, strict=True))
        for dice in [random.Random(f"{seed} {number}")]
    ]
    while min(robot.answers for robot in robots) < 2:
        assert bench.post.now < 600.0, "a robot starves"
        bench.post.now += 0.01
        bench.turns(1)
        for robot in robots:
            robot.turn()
    assert sum(robot.evicted for robot in robots) > 0 and engine._cache._pool._key_of
    assert engine._cache._pool.free >= bench.server._memory.free, "rows hold no more than was admitted"


def test_memory_is_divided_into_blocks_of_all_models(target: Vlm, draft: Vlm) -> None:
    each = sum(sum(KVCache.block_bytes_by_device(vlm).values()) for vlm in (target, draft))
    limits = ServerConfig.of(Path("m"), max_sessions=4, capacity=160, memory=str(31 * each)).limits
    assert cache_blocks(limits, [target, draft]) == 30
    caches = [KVCache(vlm, 4, 160, 30) for vlm in (target, draft)]
    assert sum(cache.nbytes for cache in caches) == 31 * each
    plenty = ServerConfig.of(Path("m"), max_sessions=4, capacity=160).limits
    assert cache_blocks(plenty, [target]) == 4 * 10
    for memory, words in ((str(10 * each), "--capacity 160: keys and values of one session take"), ("900TB", "free")):
        with pytest.raises(StartError, match=words):
            cache_blocks(ServerConfig.of(Path("m"), capacity=160, memory=memory).limits, [target, draft])
