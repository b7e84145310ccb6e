"""What a model folder is, whether two make a pair, and what memory they need: all without loading a weight."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from speculation.vlm.families import family_of
from speculation.vlm.families.text import VICUNA_TEMPLATE
from speculation.vlm.folder import (
    ModelFolderError,
    asked_processors,
    check_attention,
    check_vocabulary,
    described,
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
from speculation.vlm.memory import available_bytes, gigabytes, head_width, kv_bytes, text_config, weight_bytes
from speculation.vlm.processing import Processor, load_processor
from speculation.vlm.quantise import check_stored, stored_quantisation
from speculation.vlm.settings import Quantisation

DTYPES = ("float32", "bfloat16")
CAPACITY = 2048
FRAME = (720, 1280)
"""Height and width of the frame whose image tokens are reported: the Go2's front camera."""
NO_THINKING = "no"


@dataclass(frozen=True)
class FolderReport:
    """What one folder holds. Bytes of `weights` are by how they are loaded; `problem` is why it cannot be, or empty."""

    name: str
    folder: str
    family: str
    sees_images: bool
    parameters: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    vocabulary: int
    embedding_rows: int
    stored_as: dict[str, int]
    quantisation: str
    files: int
    file_bytes: int
    fingerprint: str
    tokenizer: str
    eos: tuple[int, ...]
    thinking: str
    """Whether the model thinks before it answers: `NO_THINKING`, or who begins that."""
    asked: dict[str, Any]
    """What its generation_config asks for that changes answers."""
    template: str
    image_tokens: int
    weights: dict[str, int]
    kv_bytes_per_token: dict[str, int]
    capacity: int
    problem: str = ""

    @property
    def padding(self) -> int:
        """Rows of the embedding that stand for no token."""
        return self.embedding_rows - self.vocabulary

    def session_bytes(self, dtype: str) -> int:
        """Return the bytes of one session's cache."""
        return self.kv_bytes_per_token[dtype] * self.capacity


@dataclass(frozen=True)
class PairReport:
    """Whether two models can decode together; `problems` are the reasons why not, `notes` what to know."""

    target: str
    draft: str
    vocabulary: int
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def free_memory() -> dict[str, int]:
    """Return the bytes that are free here: the CPU's, every GPU's and, of several, those of all together."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    free = {device: available_bytes(device) for device in ["cpu", *gpus]}
    return free | ({",".join(gpus): sum(free[gpu] for gpu in gpus)} if len(gpus) > 1 else {})


def inspect_folder(name: Path | str, capacity: int = CAPACITY, *, allow_download: bool = False) -> FolderReport:
    """Return what a folder or hub name holds. Raises ModelFolderError where it is no model of a known type."""
    folder = find_model(name, allow_download=allow_download)
    config = read_config(folder)
    files = weight_files(folder)
    tensors = stored_tensors(files)
    text = text_config(config)
    kind = config["model_type"]
    processor = load_processor(folder, config)
    tokenizer = processor.tokenizer
    stored = stored_quantisation(config)
    embedding = next((each for each in tensors if each.name.endswith("embed_tokens.weight")), None)
    rows = embedding.shape[0] if embedding is not None else int(text["vocab_size"])
    stored_as: Counter[str] = Counter()
    for tensor in tensors:
        stored_as[tensor.dtype] += tensor.count
    ways = dict.fromkeys(DTYPES, Quantisation.NONE)
    if not stored:
        ways |= {each.value: each for each in Quantisation if each is not Quantisation.NONE}
    return FolderReport(
        name=model_name(folder),
        folder=str(folder),
        family=kind,
        sees_images=family_of(kind).sees_images,
        parameters=sum(each.count for each in tensors),
        layers=int(text["num_hidden_layers"]),
        hidden=int(text["hidden_size"]),
        heads=int(text["num_attention_heads"]),
        kv_heads=int(text.get("num_key_value_heads") or text["num_attention_heads"]),
        head_dim=head_width(text),
        context=int(text.get("max_position_embeddings", 0)),
        vocabulary=len(tokenizer),
        embedding_rows=rows,
        stored_as=dict(stored_as),
        quantisation=stored or Quantisation.NONE.value,
        files=len(files),
        file_bytes=sum(path.stat().st_size for path in files),
        fingerprint=model_fingerprint(config, files),
        tokenizer=tokenizer_fingerprint(tokenizer),
        eos=end_tokens(folder, tokenizer),
        thinking=_thinking(processor),
        asked=asked_processors(folder),
        template=_template_name(processor),
        image_tokens=_image_tokens(processor),
        weights={
            way: weight_bytes(tensors, way if way in DTYPES else "bfloat16", quantisation)
            for way, quantisation in ways.items()
        },
        kv_bytes_per_token={dtype: kv_bytes(config, dtype) for dtype in DTYPES},
        capacity=capacity,
        problem=_problem(folder, config, len(tokenizer), rows),
    )


def inspect_pair(first: FolderReport, second: FolderReport) -> PairReport:
    """Return whether two models can decode together; the larger one is the target."""
    target, draft = (first, second) if first.parameters >= second.parameters else (second, first)
    problems = [f"{each.name}: {each.problem}" for each in (target, draft) if each.problem]
    if target.tokenizer != draft.tokenizer:
        problems.append(
            f"their tokenizers differ ({target.vocabulary} tokens, fingerprint {target.tokenizer}, and "
            f"{draft.vocabulary}, {draft.tokenizer}): a token id means something else to each; take two of one family"
        )
    if target.fingerprint == draft.fingerprint:
        problems.append("they are the same model: drafting would cost as much as answering")
    if target.sees_images != draft.sees_images:
        blind = draft.name if target.sees_images else target.name
        problems.append(f"{blind} is a language model alone and cannot answer about a camera's image")
    common = min(target.vocabulary, draft.vocabulary)
    return PairReport(target.name, draft.name, common, tuple(problems), _notes(target, draft))


def _notes(target: FolderReport, draft: FolderReport) -> tuple[str, ...]:
    notes = []
    if target.embedding_rows != draft.embedding_rows:
        notes.append(
            f"embeddings are padded differently ({target.embedding_rows} and {draft.embedding_rows} rows); logits of "
            f"both are cut to the {target.vocabulary} tokens of the tokenizer"
        )
    if not target.sees_images and not draft.sees_images:
        notes.append("they are language models alone: for text and benchmarks (--text-only), not for a robot's camera")
    if target.quantisation != Quantisation.NONE.value:
        notes.append(f"the target is stored quantised ({target.quantisation}): answers are exactly its own")
    if target.eos != draft.eos:
        notes.append(f"they end answers with other tokens ({target.eos} and {draft.eos}); the target's decide")
    if target.thinking != draft.thinking:
        notes.append(
            f"they do not think alike before they answer (target: {target.thinking}; draft: {draft.thinking}), which "
            "lowers acceptance; take both of one kind"
        )
    if target.template != draft.template:
        notes.append("their chat templates differ; each reads the prompt in its own, which may lower acceptance")
    if target.image_tokens != draft.image_tokens:
        notes.append(
            f"a frame takes {target.image_tokens} and {draft.image_tokens} image tokens; set max_pixels alike to make "
            "them see the same"
        )
    return tuple(notes)


def _thinking(processor: Processor) -> str:
    thinking = processor.thinking
    if thinking is None:
        return NO_THINKING
    return "yes, its chat template begins it" if thinking.opened else "where the model begins it"


def _template_name(processor: Processor) -> str:
    if processor.template == VICUNA_TEMPLATE:
        return "none: Vicuna's is used"
    digest = hashlib.blake2b(processor.template.encode(), digest_size=4).hexdigest()
    return f"{len(processor.template)} characters, {digest}"


def _image_tokens(processor: Processor) -> int:
    frames = processor.frames
    return 0 if frames is None else frames.tokens(frames.grid(*FRAME))


def _problem(folder: Path, config: dict[str, Any], tokens: int, rows: int) -> str:
    try:
        check_attention(folder, config)
        if stored := stored_quantisation(config):
            check_stored(folder, stored)
        check_vocabulary(folder, tokens, rows)
        repetition_penalty(folder)
    except ModelFolderError as error:
        return str(error)
    return ""


def table(reports: Sequence[FolderReport], free: Mapping[str, int], pair: PairReport | None = None) -> str:
    """Return the reports side by side, as people read them."""
    columns = [_column(report, free) for report in reports]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [f"note on {each.name}: {text}" for each in reports for text in _remarks(each)]
    if pair is not None:
        lines.append("")
        verdict = "cannot be a pair" if pair.problems else f"can be a pair, {pair.vocabulary} tokens in common"
        lines.append(f"target {pair.target} and draft {pair.draft} {verdict}")
        lines += [f"  because {problem}" for problem in pair.problems]
        lines += [f"  note: {note}" for note in pair.notes]
    return "\n".join(lines)


def _remarks(report: FolderReport) -> list[str]:
    remarks = [f"not usable: {report.problem}"] if report.problem else []
    if report.asked and not report.problem:
        remarks.append(
            f"generation_config asks for {described(report.asked)}: answers get it, unless generation is raw"
        )
    return remarks


def _column(report: FolderReport, free: Mapping[str, int]) -> dict[str, str]:
    stored = ", ".join(f"{dtype} {count / max(report.parameters, 1):.0%}" for dtype, count in report.stored_as.items())
    column = {
        "model": report.name,
        "family": f"{report.family}, {'sees images' if report.sees_images else 'text alone'}",
        "parameters": _count(report.parameters),
        "layers x hidden": f"{report.layers} x {report.hidden}",
        "heads": f"{report.heads}, {report.kv_heads} of keys and values, {report.head_dim} wide",
        "context": f"{report.context} tokens",
        "vocabulary": f"{report.vocabulary} tokens, {report.embedding_rows} rows ({report.padding} padding)",
        "stored as": f"{stored}, quantisation {report.quantisation}",
        "files": f"{report.files}, {gigabytes(report.file_bytes)}",
        "fingerprint": report.fingerprint,
        "tokenizer": report.tokenizer,
        "ends with": ", ".join(map(str, report.eos)),
        "thinks first": report.thinking,
        "chat template": report.template,
        f"frame {FRAME[1]} x {FRAME[0]}": f"{report.image_tokens} tokens" if report.sees_images else "-",
    }
    for way, size in report.weights.items():
        fits = [f"{device} {'yes' if size < left else 'no'}" for device, left in free.items()]
        column[f"weights, {way}"] = f"{gigabytes(size)}, fits {', '.join(fits)}"
    for dtype in report.kv_bytes_per_token:
        each = gigabytes(report.session_bytes(dtype))
        column[f"cache, {dtype}"] = (
            f"{report.kv_bytes_per_token[dtype] / 1024:.1f} KiB a token, {each} a session of {report.capacity}"
        )
    return column | {"free here": ", ".join(f"{device} {gigabytes(left)}" for device, left in free.items())}


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.2f} million"
