"""A real tiny target whose memory holds few of its robots' steps: answers are the target's own, bit for bit.

Prompts begin alike, so that rows share blocks while others of theirs are taken, freed and evicted.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cloud_verifier.config import ServerConfig, StartError
from cloud_verifier.engine import VlmEngine, cache_blocks
from cloud_verifier.machine import Machine
from cloud_verifier.server import Server
from speculation.sampling import GREEDY
from speculation.vlm.blocks import BLOCK, blocks_for
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import draft_chunk, forward, prefill, words_before_image
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import (
    BeginStep,
    Busy,
    Commit,
    Draft,
    Fault,
    FaultCode,
    Hello,
    Idle,
    begin_digest,
    encode,
    extend_digest,
)
from tests.cloud_verifier.bench import FakePost
from tests.cloud_verifier.test_engine import CAPACITY, PROMPTS, jpeg
from tests.models import scratch_logits

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


def test_a_shared_beginning_is_as_good_as_ones_own(talkative: Vlm) -> None:
    """The second prompt takes blocks of the first and feeds the rest; both are the model's own, also after a write."""
    cache = KVCache(talkative, 3, CAPACITY)
    engine = VlmEngine(talkative, 1, CAPACITY)
    inputs = [engine.prepare(*step) for step in STEPS[:3]]
    words = words_before_image(talkative, inputs[0])
    whole = len(words) // BLOCK
    assert whole >= 2 and all(words_before_image(talkative, each)[: len(words)] == words for each in inputs)
    roots = [prefill(talkative, cache, row, each) for row, each in enumerate(inputs)]
    tables = cache._tables
    assert tables[0][:whole] == tables[1][:whole] == tables[2][:whole] and tables[0][whole] != tables[1][whole]
    chunks = [draft_chunk(cache, row, roots[row], [5, 6, 7], [-1, 0, -1]) for row in range(3)]
    for each, logits in zip(inputs, forward(talkative, cache, chunks), strict=True):
        np.testing.assert_allclose(logits[2], scratch_logits(talkative, each, [5, 6])[-1], rtol=0, atol=1e-9)


class Robot:
    """Drafts right and wrong, stops for a while now and then, and begins again where it stood when it must."""

    def __init__(self, number: int, truth: list[int], seed: int) -> None:
        self.peer, self.truth = f"robot {number}".encode(), truth
        self.prompt, self.image = STEPS[number]
        self.dice = random.Random(f"{seed} {number}")
        self.step, self.answer, self.answers = 1, list[int](), 0
        self.round = self.read = self.evicted = self.refused = 0
        self.at = 0.0
        self.begun = False

    def turn(self, post: FakePost) -> None:
        mine = [message for _, who, message in post.sent if who == self.peer]
        for message in mine[self.read :]:
            if isinstance(message, Commit) and message.step == self.step:
                assert message.start <= len(self.answer)
                self.answer = [*self.answer[: message.start], *message.tokens]
                assert self.answer == self.truth[: len(self.answer)]
                if message.done:
                    assert self.answer == self.truth
                    self.step, self.answer, self.begun = self.step + 1, [], False
                    self.answers += 1
            elif isinstance(message, Busy):
                self.refused += 1
                self.begun, self.at = False, post.now + message.retry_after_s
            elif isinstance(message, Fault):
                assert message.code is FaultCode.NO_SESSION, message
                self.evicted += 1
                self.begun = False
        self.read = len(mine)
        if post.now >= self.at:
            post.mail.append((post.now, self.peer, [self._next()]))
            pause = 8.0 if self.dice.random() < 0.1 else 0.2
            self.at = post.now + pause * self.dice.random()

    def _next(self) -> bytes:
        if not self.begun:
            self.begun = True
            idle = Idle(self.dice.choice([0, 0, 1]))
            answer = list(self.answer)
            return encode(BeginStep(self.step, self.prompt, self.image, answer, max_tokens=TOKENS, idle=idle))
        right = self.truth[len(self.answer) :][: self.dice.randrange(4)]
        self.round += 1
        digest = extend_digest(begin_digest(self.prompt, self.image, GREEDY.text), self.answer)
        return encode(Draft(self.step, self.round, len(self.answer), digest, [*right, self.dice.randrange(300)]))


@pytest.mark.parametrize(("steps", "seed", "policy"), [(1.0, 0, "full_budget"), (2.3, 1, "fcfs")])
def test_answers_are_the_targets_own_when_memory_is_short(
    talkative: Vlm, truths: list[list[int]], steps: float, seed: int, policy: str
) -> None:
    config = ServerConfig.of(Path("target"), max_sessions=8, max_draft=MAX_DRAFT, idle_s=86400.0, policy=policy)
    engine = VlmEngine(talkative, 8, CAPACITY, max_draft=MAX_DRAFT, blocks=int(steps * need(talkative)))
    post = FakePost()
    server = Server(Machine(engine), config, post, post.clock)
    model = engine.model
    robots = [Robot(number, truth, seed) for number, truth in enumerate(truths)]
    for robot in robots:
        post.mail.append((0.0, robot.peer, [encode(Hello(model.tokenizer_fingerprint, model.vocabulary))]))
    server.turn()
    while min(robot.answers for robot in robots) < 2:
        assert post.now < 600.0, "a robot starves"
        post.now += 0.01
        server.turn()
        for robot in robots:
            robot.turn(post)
    assert sum(robot.evicted for robot in robots) > 0 and engine._cache._pool._key_of
    assert engine._cache._pool.free >= server._memory.free, "rows hold no more than was admitted"


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
