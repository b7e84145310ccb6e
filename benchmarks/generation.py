"""transformers' own ways to generate, as peers: greedy, assisted by a draft model, by prompt lookup.

They get what our models get: the ids, pixels and positions' token types of `speculation.vlm.inputs.prepare`, on the
same loaded weights. A target's `generation_config` is replaced by greedy decoding with the repetition penalty that the
model was loaded with, which is what "the target alone" means here; the assistant's is transformers' own default but for
what an arm changes on purpose.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig as _GenerationConfig

from edge_drafter import DecodingStats
from speculation.vlm.inputs import Inputs, as_sent, library_arguments, prepare
from speculation.vlm.model import Vlm
from speculation.vlm.speed import synchronise
from vlm_nav_evaluation.experiment.run import Answer, Question

GenerationConfig: Any = _GenerationConfig
WORDS = ("input_ids", "attention_mask", "mm_token_type_ids")
"""Arguments of a forward that are not of its images."""


class Generate:
    """transformers' `generate` of a target, alone or assisted: a draft model proposes, in this process.

    more: arguments of `generate`, such as prompt_lookup_num_tokens; with `draft`, values of the assistant's generation
    config. sight: the draft model gets the image. In transformers 5 it does not as shipped: the target's encoded image
    is handed to the assistant, whose prefill then drops it as no first iteration, so that it embeds the bare
    placeholders. Answers stay right, acceptance falls.
    """

    def __init__(
        self, target: Vlm, max_tokens: int, draft: Vlm | None = None, *, sight: bool = False, **more: Any
    ) -> None:
        self._target, self._draft, self._sight, self._more = target, draft, sight, more
        ends = {"eos_token_id": list(target.eos), "pad_token_id": target.eos[0]}
        self._config = GenerationConfig(
            do_sample=False, max_new_tokens=max_tokens, repetition_penalty=target.repetition_penalty, **ends
        )
        # One of its own: the schedule of another arm that shares the draft model must not leak in.
        self._assistant = GenerationConfig(**ends, **more) if draft is not None else None

    def __call__(self, question: Question) -> Answer:
        """Answer one question. Raises ValueError where transformers refuses, or for a question that cannot be used.

        Every forward of the target that brings tokens is a round; as in a verifier, the prefill is no cloud pass.
        """
        began = time.perf_counter()
        target, draft, more, forwards = self._target, self._draft, self._more, list[None]()
        arguments = library_arguments(target, prepare(target, question.prompt, as_sent(target, question.jpeg)))
        # Not passed to generate(): what it leaves open would be filled from the checkpoint's own.
        target.model.generation_config = self._config
        with ExitStack() as stack:
            if draft is not None:
                draft.model.generation_config = self._assistant
                more = {"assistant_model": draft.model}
                if self._sight and "pixel_values" in arguments:
                    images = {name: each for name, each in arguments.items() if name not in WORDS}
                    stack.enter_context(sighted(draft, images))
            stack.callback(target.text.register_forward_pre_hook(lambda *_: forwards.append(None)).remove)
            output = target.model.generate(**arguments, **more)
        tokens, rounds = tuple(output[0, arguments["input_ids"].shape[1] :].tolist()), len(forwards)
        stats = DecodingStats(tokens=len(tokens), rounds=rounds, cloud_passes=rounds - 1)
        stats.total_s = time.perf_counter() - began
        return Answer(tokens, stats)


def beside_library(
    vlm: Vlm, inputs: Inputs, prefill: Callable[[], object], decode: Callable[[], object], repeats: int
) -> dict[str, float]:
    """Return what transformers' own forward takes for a prompt and for a token behind it, milliseconds, and how many
    times as long our `prefill` and `decode` of the same take: medians of turns, as whatever else runs falls on both.

    On a CPU it is processor time.
    """
    given, last = library_arguments(vlm, inputs), torch.from_numpy(inputs.ids[None, -1:]).to(vlm.device)
    clock = time.process_time if vlm.device.type == "cpu" else time.perf_counter
    found: dict[str, float] = {}

    def theirs() -> Any:
        output = vlm.model.base_model(**given, use_cache=True)  # without logits, as ours
        return output["cache" if "cache" in output else "past_key_values"]  # before transformers 5.24

    cache = theirs()
    argument = "cache" if "cache" in inspect.signature(vlm.text.forward).parameters else "past_key_values"

    def one_more() -> None:
        vlm.model(input_ids=last, use_cache=True, **{argument: cache})
        cache.crop(-1)

    for name, own, other in (("prefill", prefill, theirs), ("decode", decode, one_more)):
        turns: list[tuple[float, float]] = []
        for turn in range(repeats + 1):
            seconds = [_seconds(work, vlm, clock) for work in (own, other)]
            if turn:  # the first pays for what libraries put off
                turns.append((seconds[0], seconds[1]))
        found[f"library_{name}_ms"] = round(1e3 * median(other for _, other in turns), 4)
        found[f"{name}_to_library"] = round(median(own / other for own, other in turns), 4)
    return found


def _seconds(work: Callable[[], object], vlm: Vlm, clock: Callable[[], float]) -> float:
    synchronise(vlm.device)
    began = clock()
    work()
    synchronise(vlm.device)
    return clock() - began


def check_alike(target: Vlm, draft: Vlm, question: Question) -> None:
    """Raise ValueError where the two models would be given other ids or pixels for one question.

    transformers shows both the same ids, so "with sight" is right only for models that prepare frames alike.
    """
    sent = as_sent(target, question.jpeg)
    one, other = (library_arguments(vlm, prepare(vlm, question.prompt, sent)) for vlm in (target, draft))
    for name in one.keys() | other.keys():
        if name not in one or name not in other or not torch.equal(one[name].cpu(), other[name].cpu()):
            raise ValueError(
                f"{target.name} and {draft.name} prepare a question differently ({name}), transformers' assisted "
                "generation gives both the same; take two models of one family with one frame size"
            )


@contextmanager
def sighted(draft: Vlm, images: Mapping[str, Tensor]) -> Iterator[None]:
    """Let an assistant see: at its prefill it gets the images itself, in place of the target's encoded ones."""
    model = draft.model
    own = model.prepare_inputs_for_generation

    # `generate` reads the signature: without an argument of exactly this name it refuses all others.
    def with_image(input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        prepared: dict[str, Any] = own(input_ids, **kwargs)
        prepared.pop("mm_encoder_outputs", None)
        cached = prepared["cache" if "cache" in prepared else "past_key_values"]  # before transformers 5.24
        if cached.get_seq_length() == 0:
            prepared |= images
        return prepared

    model.prepare_inputs_for_generation = with_image
    try:
        yield
    finally:
        del model.prepare_inputs_for_generation
