"""Questions in the form of MMSpec, a benchmark of speculative decoding for models that see, and its way of counting.

arXiv 2603.14989. A folder holds `mmspec.jsonl`, an object a line with id, image, turns, category and, in the published
files, topic, and the images in `images/`. Of a sample with several turns each later one follows the image, all
questions before and the target's answers to them, in the model's own chat template.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from statistics import fmean
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from PIL import Image

from edge_drafter import DecodingStats
from speculation.frames import turned
from speculation.images import file_jpeg, pixels_jpeg
from vlm_nav_evaluation.experiment.prompts import Text, pick, read_lines
from vlm_nav_evaluation.experiment.run import Question, Run
from vlm_nav_evaluation.tables import Column, figures_table

MMSPEC = "mmspec:"
"""What a source of questions begins with that names a folder in this form."""
SAMPLES, IMAGES = "mmspec.jsonl", "images"
LARGE_SIDE = 2048
"""Pixels of the longer side of an image that had to be scaled, as it is too large for a message."""
ALL = "all"
COLUMNS = (
    Column("turns", "turns", "d", 1),
    Column("tokens", "tokens", "d", 1),
    Column("mean accepted tokens", "mean_accepted_tokens"),
    Column("walltime ratio, mean of turns", "walltime_ratio", ".2fx"),
    Column("of totals", "walltime_ratio_of_totals", ".2fx"),
)


class Sample(msgspec.Struct, frozen=True):
    """One line: an image, and what is asked about it, one question after the other's answer."""

    id: Annotated[str, Meta(pattern=r"\S", max_length=200)]
    image: Annotated[str, Meta(pattern=r"\S")]
    turns: Annotated[tuple[Text, ...], Meta(min_length=1)]
    category: str
    topic: str = ""
    """Its task; the published files have their six here and a source's own word in `category`."""


def is_mmspec(source: str) -> bool:
    """Return whether a source of questions is in this form."""
    return source.startswith(MMSPEC)


def load_questions(path: Path, count: int, seed: int = 0) -> list[Question]:
    """Return the first turns of `count` samples of a folder, or of its .jsonl file, spread evenly over the file.

    Raises ValueError, in one sentence that names file and line, for a file, a sample or an image that cannot be used,
    and where there are fewer samples.
    """
    file = path / SAMPLES if path.is_dir() else path
    samples = read_lines(file, Sample)
    if not samples:
        raise ValueError(f"{file} holds no samples; give one JSON object a line with id, image, turns and category")
    _check_names(samples, file.parent / IMAGES)
    return [
        Question(
            sample.turns[0],
            _read_image(file.parent / IMAGES / sample.image, where),
            sample.id,
            sample.topic or sample.category or "none",
            sample.turns[1:],
        )
        for where, sample in pick(samples, count, seed)
    ]


def _check_names(samples: Sequence[tuple[str, Sample]], images: Path) -> None:
    places: dict[str, str] = {}
    for where, sample in samples:
        name = PurePosixPath(sample.image)
        if name.is_absolute() or ".." in name.parts:
            raise ValueError(f"{where}: image {sample.image!r} is outside {images}; name one in there")
        if sample.id in places:
            raise ValueError(f"{where}: id {sample.id!r} was there before, at {places[sample.id]}; give each its own")
        places[sample.id] = where


def _read_image(path: Path, where: str) -> bytes:
    """Return an image file as the JPEG that a robot would send."""
    try:
        return _jpeg(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{where}: image {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{where}: image {path}: {error}") from None


def _jpeg(data: bytes) -> bytes:
    try:
        return file_jpeg(data)
    except ValueError:
        if (smaller := _scaled(data)) is None:
            raise
        return smaller


def _scaled(data: bytes) -> bytes | None:
    """Return a JPEG of a large image whose longer side has LARGE_SIDE pixels; None for what is none or is broken."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if max(image.size) <= LARGE_SIDE:
                return None
            image.draft("RGB", (LARGE_SIDE, LARGE_SIDE))
            seen = turned(image.convert("RGB"))
    except Exception:
        # Readers of so many formats raise anything where their file is broken or far too large.
        return None
    seen.thumbnail((LARGE_SIDE, LARGE_SIDE), Image.Resampling.BICUBIC)
    return pixels_jpeg(np.asarray(seen))


def mean_accepted_tokens(stats: Sequence[DecodingStats], *, at_prefill: bool = False) -> float | None:
    """Return the tokens of a verification: the accepted draft tokens and the target's own; None without one.

    MMSpec counts new tokens over rounds of verification. A prefill that verifies no draft is no round there, and the
    token that it brings belongs to the first round. `at_prefill`: the prefill verifies one, too.
    """
    first = 0 if at_prefill else len(stats)
    rounds = sum(entry.rounds for entry in stats) - first
    return (sum(entry.tokens for entry in stats) - first) / rounds if rounds > 0 else None


def counted(
    run: Run, asked: Sequence[Question], alone: str, at_prefill: Collection[str] = ()
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the figures that MMSpec prints, for each category and for all, of every arm whose answers are `alone`'s.

    alone: the arm in which the target answers alone. The walltime ratio is tokens a second over those of `alone`, its
    mean over turns, and of the totals. at_prefill: as for `mean_accepted_tokens`.
    """
    groups: dict[str, list[int]] = {}
    for place, question in enumerate(asked):
        groups.setdefault(question.category, []).append(place)
    every = {**groups, ALL: list(range(len(asked)))} if len(groups) > 1 else {ALL: list(range(len(asked)))}
    return {
        category: {
            arm: _figures([run.stats(arm)[place] for place in places], [run.stats(alone)[place] for place in places],
                          arm in at_prefill)
            for arm in run.answers
            if arm in run.exact
        }
        for category, places in every.items()
    }  # fmt: skip


def _figures(stats: Sequence[DecodingStats], alone: Sequence[DecodingStats], at_prefill: bool) -> dict[str, Any]:
    ratios = [one.per_token_s / other.per_token_s for one, other in zip(alone, stats, strict=True)]
    tokens = sum(entry.tokens for entry in stats)
    seconds, alone_s = (sum(entry.total_s for entry in each) for each in (stats, alone))
    return {
        "turns": len(stats),
        "tokens": tokens,
        "mean_accepted_tokens": mean_accepted_tokens(stats, at_prefill=at_prefill),
        "walltime_ratio": fmean(ratios),
        "walltime_ratio_of_totals": tokens / seconds / (sum(entry.tokens for entry in alone) / alone_s),
    }


def mmspec_figures(
    source: str, run: Run, asked: Sequence[Question], alone: str, at_prefill: Collection[str] = ()
) -> dict[str, Any]:
    """Print the figures of `counted` for a source in MMSpec's form, and return them as a result keeps them.

    Returns an empty dictionary, and prints nothing, for any other source.
    """
    if not is_mmspec(source):
        return {}
    found = counted(run, asked, alone, at_prefill)
    print(described(found, alone))
    return {"mmspec": found}


def described(figures: Mapping[str, Mapping[str, Mapping[str, Any]]], alone: str) -> str:
    """Return the figures of `counted` as a table, and how they are counted."""
    rows = {f"{category}: {arm}": entry for category, arms in figures.items() for arm, entry in arms.items()}
    return (
        f"as MMSpec counts: accepted draft tokens and one more a verification, walltime against '{alone}', prefill "
        f"included\n{figures_table('category: arm', rows, COLUMNS)}"
    )
