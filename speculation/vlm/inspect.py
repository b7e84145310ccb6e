"""Shows what a model folder is, whether two make a pair, and what memory they need: all without loading a weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from speculation.vlm.families import family_of
from speculation.vlm.folder import (
    check_attention,
    check_vocabulary,
    end_tokens,
    find_model,
    model_fingerprint,
    model_name,
    read_config,
    repetition_penalty,
    stored_tensors,
    tokenizer_fingerprint,
    weight_files,
)
from speculation.vlm.memory import available_bytes, gigabytes, kv_bytes, weight_bytes
from speculation.vlm.processing import Processor, load_processor
from speculation.vlm.quantise import check_stored, stored_quantisation
from speculation.vlm.settings import Quantisation

DTYPES = ("float32", "bfloat16")
FRAME = (720, 1280)
"""Height and width of the frame whose image tokens are reported: the Go2's front camera."""


@dataclass(frozen=True)
class FolderReport:
    """What one folder holds; bytes of `weights` are by how they are loaded."""

    name: str
    family: str
    sees_images: bool
    parameters: int
    quantisation: str
    fingerprint: str
    tokenizer: str
    vocabulary: int
    thinking: str
    """Whether the model thinks before it answers, in words."""
    image_tokens: int
    weights: dict[str, int]
    kv_bytes_per_token: int
    """Bytes of one token's keys and values in bfloat16, all layers together."""


def free_memory() -> dict[str, int]:
    """Return the bytes that are free here: the CPU's, every GPU's and, of several, those of all together."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    free = {device: available_bytes(device) for device in ["cpu", *gpus]}
    return free | ({",".join(gpus): sum(free[gpu] for gpu in gpus)} if len(gpus) > 1 else {})


def inspect_folder(name: Path | str, *, allow_download: bool = False) -> FolderReport:
    """Return what a folder or hub name holds. Raises ModelFolderError where it is no model that can be loaded."""
    folder = find_model(name, allow_download=allow_download)
    config = read_config(folder)
    check_attention(folder, config)
    if stored := stored_quantisation(config):
        check_stored(folder, stored)
    files = weight_files(folder)
    tensors = stored_tensors(files)
    processor = load_processor(folder, config)
    tokenizer, frames = processor.tokenizer, processor.frames
    embedding = next((each for each in tensors if each.name.endswith("embed_tokens.weight")), None)
    if embedding is not None:
        check_vocabulary(folder, len(tokenizer), embedding.shape[0])
    end_tokens(folder, tokenizer)
    repetition_penalty(folder)
    ways = dict.fromkeys(DTYPES, Quantisation.NONE)
    if not stored:
        ways |= {each.value: each for each in Quantisation if each is not Quantisation.NONE}
    return FolderReport(
        name=model_name(folder),
        family=config["model_type"],
        sees_images=family_of(config["model_type"]).sees_images,
        parameters=sum(each.count for each in tensors),
        quantisation=stored or Quantisation.NONE.value,
        fingerprint=model_fingerprint(config, files),
        tokenizer=tokenizer_fingerprint(tokenizer),
        vocabulary=len(tokenizer),
        thinking=_thinking(processor),
        image_tokens=0 if frames is None else frames.tokens(frames.grid(*FRAME)),
        weights={
            way: weight_bytes(tensors, way if way in DTYPES else "bfloat16", quantisation)
            for way, quantisation in ways.items()
        },
        kv_bytes_per_token=kv_bytes(config, "bfloat16"),
    )


def pair_problems(first: FolderReport, second: FolderReport) -> list[str]:
    """Return why two models cannot decode together, in words; empty where they can."""
    problems = []
    if first.tokenizer != second.tokenizer:
        problems.append(
            f"their tokenizers differ ({first.vocabulary} and {second.vocabulary} tokens): a token id means something "
            "else to each; take two of one family"
        )
    if first.fingerprint == second.fingerprint:
        problems.append("they are the same model: drafting would cost as much as answering")
    if first.sees_images != second.sees_images:
        blind = second.name if first.sees_images else first.name
        problems.append(f"{blind} is a language model alone and cannot answer about a camera's image")
    return problems


def table(reports: Sequence[FolderReport], free: Mapping[str, int]) -> str:
    """Return the reports side by side, as people read them, and of two whether they are a pair."""
    columns = [_column(report, free) for report in reports]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, "-") for column in columns)] for name in names]
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(reports) == 2:
        problems = pair_problems(*reports)
        lines += [f"they cannot be a pair: {problem}" for problem in problems] or ["they can be target and draft"]
        if reports[0].thinking != reports[1].thinking:
            lines.append("they do not think alike before they answer, which lowers acceptance; take both of one kind")
    return "\n".join(lines)


def _thinking(processor: Processor) -> str:
    thinking = processor.thinking
    if thinking is None:
        return "no"
    return "yes, its chat template begins it" if thinking.opened else "where the model begins it"


def _column(report: FolderReport, free: Mapping[str, int]) -> dict[str, str]:
    column = {
        "model": report.name,
        "family": f"{report.family}, {'sees images' if report.sees_images else 'text alone'}",
        "parameters": f"{report.parameters / 1e9:.3f} billion",
        "stored quantised": report.quantisation,
        "tokenizer": f"{report.tokenizer}, {report.vocabulary} tokens",
        "thinks first": report.thinking,
        f"frame {FRAME[1]} x {FRAME[0]}": f"{report.image_tokens} tokens",
        "cache": f"{report.kv_bytes_per_token / 1024:.1f} KiB a token in bfloat16",
    }
    for way, size in report.weights.items():
        fits = [f"{device} {'yes' if size < left else 'no'}" for device, left in free.items()]
        column[f"weights, {way}"] = f"{gigabytes(size)}, fits {', '.join(fits)}"
    return column
