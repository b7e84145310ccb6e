"""What a predictor learns from: real drafts, token by token, with the target's verdicts.

WISP, Appendix B: a token is labelled accepted, or first rejected; what follows the first rejection of a draft has no
label. It is kept all the same, unlabelled, since a draft that does not stop goes through it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from adapters_training import wording
from adapters_training.devices import ModelConfig
from adapters_training.records import Task, read_shard, shards
from adapters_training.speculative_decoding import SpeculativeDecoder
from speculation.distributions import Distributions
from speculation.predictor import FEATURES, features
from speculation.progress import progress
from speculation.vlm.model import Vlm

ACCEPTED, REJECTED, UNLABELLED = 1, 0, -1
CAPACITY = 1024
HELD_OUT_SHARE = 0.2
"""Share of the scenes for validation, and as many for the test."""
_ARRAYS = ("features", "label", "draft", "scene")
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Drafts:
    """Draft tokens in the order in which they were drafted; a draft's tokens lie together."""

    features: npt.NDArray[np.float64]
    """[n, 5], see `speculation.predictor.features`."""
    label: Integers
    """[n], ACCEPTED, REJECTED (the first one) or UNLABELLED (behind it)."""
    draft: Integers
    """[n], the draft's number, from 0."""
    scene: Integers
    """[n], the seed of the scene of the frame."""
    header: dict[str, Any]
    """What they were made with: models' fingerprints, gamma and the like."""

    def __len__(self) -> int:
        return len(self.label)

    def of(self, scenes: set[int]) -> Drafts:
        """Return the drafts of some scenes."""
        chosen = np.isin(self.scene, list(scenes))
        return replace(self, **{name: getattr(self, name)[chosen] for name in _ARRAYS})

    def labelled(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the features [m, 5] and labels [m], 1 or 0, of the tokens that have one."""
        known = self.label != UNLABELLED
        return self.features[known], self.label[known].astype(np.float64)


class PredictorConfig(ModelConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says how frames are decoded, and for which times the threshold is chosen."""

    draft: Annotated[Path, Meta(description="model folder")] = Path("models/draft")
    target: Annotated[Path, Meta(description="model folder")] = Path("models/target")
    data: Annotated[Path, Meta(description="shards of the 'data' command; rooms of their own")]
    out: Annotated[Path, Meta(description="folder to export to; the edge looks beside its draft")]
    frames: Annotated[int, Meta(ge=1, description="in all, taken evenly from the shards")] = 600
    gamma: Annotated[int, Meta(ge=1, description="longest draft")] = 8
    max_tokens: Annotated[int, Meta(ge=2, description="of an answer")] = 96
    seed: Annotated[int, Meta(ge=0, description="of frames, questions, weights and the split of scenes")] = 0
    profile: Annotated[str, Meta(description="times for the threshold")] = "go2_a100"
    threshold: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="export with this one instead of choosing")
    ] = None
    compare: Annotated[bool, Meta(description="print other classifiers' figures, too (needs scikit-learn)")] = False
    threshold_gamma: Annotated[int, Meta(ge=1, description="longest draft for the threshold, at most --gamma")] = 4


def collect(draft: Vlm, target: Vlm, config: PredictorConfig) -> Drafts:
    """Decode frames of the shards in `data` as mode sd does and return all drafts.

    Raises ValueError for models that are no pair and for a folder without shards.
    """
    decoder = SpeculativeDecoder(target, draft, config.gamma, config.max_tokens, CAPACITY)
    paths = shards(config.data)
    if not paths:
        raise ValueError(f"no frames in {config.data}: run 'python -m adapters_training data' first")
    header = {"draft": draft.fingerprint, "target": target.fingerprint, "features": list(FEATURES),
              "gamma": config.gamma, "frames": config.frames, "max_tokens": config.max_tokens, "seed": config.seed,
              "data": [path.name for path in paths]}  # fmt: skip
    form = wording.form_of(target.folder)
    parts: list[dict[str, Any]] = []
    count = 0
    with progress(total=config.frames, unit="frame", desc="drafts", mininterval=2.0) as bar:
        for place, path in enumerate(paths):
            share = len(range(place, config.frames, len(paths)))
            part = _of_shard(decoder, form, path, random.Random(f"{config.seed}/{path.name}"), share)
            part["draft"] = part["draft"] + count
            count = int(part["draft"].max(initial=count - 1)) + 1
            parts.append(part)
            bar.update(share)
    return Drafts(**{name: np.concatenate([part[name] for part in parts]) for name in _ARRAYS}, header=header)


def _of_shard(decoder: SpeculativeDecoder, form: int, path: Path, rng: random.Random, share: int) -> dict[str, Any]:
    """Return the arrays of the drafts about `share` frames of a shard."""
    frames = read_shard(path)
    rows: list[npt.NDArray[np.float64]] = []
    columns: list[tuple[int, int, int]] = []
    number = 0
    asked = [index for index, frame in enumerate(frames) if frame.tasks]
    for index in sorted(rng.sample(asked, min(share, len(asked)))):
        task = _choose([task for task in frames[index].tasks if wording.fits(task, form)], rng)
        scene = scene_of(path, index, len(frames))
        for found in decoder.answer(task.prompt or wording.prompt(task, form=form), frames[index].jpeg):
            for depth, logits in enumerate(found.draft_logits, start=1):
                rows += [*features(Distributions(logits[None]), [depth])]
            labels = [ACCEPTED] * len(found.verdict.path) + [REJECTED] + [UNLABELLED] * len(found.tokens)
            columns += [(label, number, scene) for label in labels[: len(found.tokens)]]
            number += 1
    label, draft, scenes = np.array(columns, np.int64).reshape(-1, 3).T
    return dict(zip(_ARRAYS, (np.array(rows).reshape(-1, len(FEATURES)), label, draft, scenes), strict=True))


def _choose(tasks: list[Task], rng: random.Random) -> Task:
    """Half of the questions are about something in view, where there is something: most of a frame's tasks are not."""
    seen = [task for task in tasks if task.seen is not None]
    return rng.choice(seen if seen and rng.random() < 0.5 else tasks)


def scene_of(path: Path, index: int, count: int) -> int:
    """Return the seed of the scene that frame `index` of a shard's `count` frames shows.

    A shard `seeds-A-B` holds equally many frames of every scene, in order. Where that does not fit, the whole shard
    counts as one scene: what is held out must be rooms that were not seen.
    """
    first, last = (int(part) for part in path.stem.split("-")[1:3])
    each, rest = divmod(count, last - first)
    return first + index // each if each and not rest else first


def split(scenes: Sequence[int], seed: int) -> tuple[set[int], ...]:
    """Return (training, validation, test) scenes: no room is in two of them. ValueError for fewer than 5 scenes."""
    order = sorted({int(scene) for scene in scenes})
    if len(order) < 5:
        raise ValueError(f"the drafts come from {len(order)} scenes; at least 5 are needed to hold some out")
    random.Random(seed).shuffle(order)
    held = max(1, round(HELD_OUT_SHARE * len(order)))
    return set(order[2 * held :]), set(order[:held]), set(order[held : 2 * held])
