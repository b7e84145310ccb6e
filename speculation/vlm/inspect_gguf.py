"""What a GGUF draft model is, and whether it can draft for a target: without llama.cpp and without a weight."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speculation.vlm.folder import GgufFiles, gguf_fingerprint, read_config, tokenizer_fingerprint
from speculation.vlm.gguf_file import check_eyes, check_language_model, read_metadata
from speculation.vlm.gguf_tokenizer import difference, gguf_processor
from speculation.vlm.inspect import FolderReport
from speculation.vlm.memory import gigabytes
from speculation.vlm.processing import load_processor


@dataclass(frozen=True)
class GgufReport:
    """One GGUF draft model; `problems` are why it cannot draft for the target that it was compared with."""

    files: tuple[str, ...]
    family: str
    context: int
    vocabulary: int
    tokenizer: str
    fingerprint: str
    file_bytes: int
    target: str
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def inspect_gguf(files: GgufFiles, target: FolderReport) -> GgufReport:
    """Return what the files hold and how they go with a target. Raises ModelFolderError for files that are no model."""
    metadata = read_metadata(files.weights)
    check_language_model(files.weights, metadata)
    if files.eyes is not None:
        check_eyes(files.eyes, read_metadata(files.eyes))
    tokenizer, family = gguf_processor(files.weights, metadata).tokenizer, str(metadata["general.architecture"])
    notes, problems = list[str](), list[str]()
    if tokenizer_fingerprint(tokenizer) != target.tokenizer:
        problems.append(_what_differs(tokenizer, target))
    if target.sees_images and files.eyes is None:
        notes.append("it drafts without seeing; give its vision tower as MODEL.gguf,MMPROJ.gguf")
    paths = [path for path in files if path is not None]
    return GgufReport(
        tuple(map(str, paths)),
        family,
        int(metadata.get(f"{family}.context_length", 0)),
        len(tokenizer),
        tokenizer_fingerprint(tokenizer),
        gguf_fingerprint(files),
        sum(path.stat().st_size for path in paths),
        target.name,
        tuple(notes),
        tuple(problems),
    )


def _what_differs(tokenizer: Any, target: FolderReport) -> str:
    theirs = load_processor(Path(target.folder), read_config(Path(target.folder))).tokenizer
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    what = difference(tokens, theirs) or "its merges or special tokens are others than"
    return f"{what} in {target.name}, which has another tokenizer; take a GGUF file of a model of the target's family"


def lines(report: GgufReport) -> list[str]:
    """Return a report as people read it."""
    return [
        "",
        f"GGUF draft {', '.join(report.files)}: {report.family}, {gigabytes(report.file_bytes)}, context "
        f"{report.context}, {report.vocabulary} tokens, tokenizer {report.tokenizer}, fingerprint {report.fingerprint}",
        f"  {'cannot' if report.problems else 'can'} draft for {report.target}",
        *(f"  note: {note}" for note in report.notes),
        *(f"  because {problem}" for problem in report.problems),
    ]
