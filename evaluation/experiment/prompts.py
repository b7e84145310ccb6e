"""Text prompts from local files of one JSON object a line: GSM8K, HumanEval, MT-Bench, Spec-Bench, a sample of our own.

The form of a file is told by the field that holds its prompts. Of a conversation the first turn alone is asked: later
ones need the answers before them, and a step of this system is one question. Prompts are put word for word as the file
has them, in the model's own chat template.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from speculation.wire import MAX_PROMPT_CHARS

SAMPLE = Path(__file__).parent / "data" / "prompts.jsonl"


class Form(Enum):
    """Forms of files, by the field that holds the prompt."""

    GSM8K = "question"
    """question, answer (Cobbe et al., arXiv 2110.14168)."""
    HUMAN_EVAL = "prompt"
    """task_id, prompt (Chen et al., arXiv 2107.03374)."""
    TURNS = "turns"
    """category, turns: MT-Bench (arXiv 2306.05685) and Spec-Bench (arXiv 2401.07851)."""


BESIDE = {Form.GSM8K: "answer", Form.HUMAN_EVAL: "task_id", Form.TURNS: "category"}
"""What else a line must have, as text, so that a file is taken for what it is and nothing else."""
KNOWN = "question and answer (GSM8K), prompt and task_id (HumanEval), turns and category (MT-Bench, Spec-Bench)"


@dataclass(frozen=True)
class TextPrompt:
    """One prompt: its kind in the file's own words, the text, and where it stands."""

    category: str
    text: str
    where: str


def load_prompts(path: Path) -> list[TextPrompt]:
    """Return the prompts of a .jsonl or .jsonl.gz file, in its order; blank lines do not count.

    Raises ValueError, in one sentence that names file, line and field, for a file that cannot be asked.
    """
    prompts: list[TextPrompt] = []
    form: Form | None = None
    for number, text in _lines(path):
        where = f"{path} line {number}"
        fields = _object(text, where)
        form = form or _form(fields, where)
        prompts.append(_prompt(fields, form, where))
    if not prompts:
        raise ValueError(f"{path} holds no prompts; give one JSON object a line with {KNOWN}")
    return prompts


def pick(prompts: list[TextPrompt], count: int, seed: int = 0) -> list[TextPrompt]:
    """Return `count` different prompts, spread evenly over the file so that every category has its share.

    Raises ValueError where there are fewer: a prompt that comes twice would be answered from memory (n-grams).
    """
    if count > len(prompts):
        raise ValueError(f"{count} prompts were asked for, the file holds {len(prompts)}; ask for at most as many")
    return [prompts[(place * len(prompts) // count + seed) % len(prompts)] for place in range(count)]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        data = path.read_bytes()
        content = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ValueError(f"prompts {path} cannot be read: {reason}") from None
    # Not splitlines: a JSON string may hold characters that it takes for the end of a line.
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            yield number, line


def _object(text: str, where: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{where} is no JSON object but {type(fields).__name__}; it needs {KNOWN}")
    return fields


def _form(fields: Mapping[str, Any], where: str) -> Form:
    # The field beside it tells HumanEval's prompt from a file that only happens to have a field of that name.
    for form in Form:
        if form.value in fields and BESIDE[form] in fields:
            return form
    raise ValueError(f"{where} has the fields {', '.join(sorted(fields)) or 'none'}; it needs {KNOWN}")


def _prompt(fields: Mapping[str, Any], form: Form, where: str) -> TextPrompt:
    beside, name = _text(fields, BESIDE[form], where), form.value
    if form is Form.TURNS:
        turns = fields.get(name)
        if not isinstance(turns, list) or not turns:
            raise ValueError(f"{where}: field turns must be a list with at least one text")
        fields, name = {"turns[0]": turns[0]}, "turns[0]"
    text = _text(fields, name, where)
    if len(text) > MAX_PROMPT_CHARS:
        raise ValueError(f"{where}: field {name} has {len(text)} characters, a step takes {MAX_PROMPT_CHARS}")
    return TextPrompt(beside if form is Form.TURNS else form.name.lower(), text, where)


def _text(fields: Mapping[str, Any], name: str, where: str) -> str:
    if name not in fields:
        raise ValueError(f"{where}: field {name} is missing")
    value = fields[name]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: field {name} must be a text that is not empty")
    return value
