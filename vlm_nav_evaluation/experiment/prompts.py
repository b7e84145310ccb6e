"""Text prompts from local files of one JSON object a line: GSM8K, HumanEval, MT-Bench, Spec-Bench, a sample of our own.

Of a conversation only the first turn is used; `mmspec` has those with all turns, about images. Prompts are put word
for word as the file has them, in the model's own chat template.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from speculation.language.prompts import TURN_END
from speculation.wire import MAX_PROMPT_CHARS

TEXT_FILE = "text:"
"""What a source of questions begins with that names a file."""
SAMPLE = Path(__file__).parent / "data" / "prompts.jsonl"
KNOWN = "question (GSM8K), prompt (HumanEval) or turns (MT-Bench, Spec-Bench)"
Text = Annotated[str, Meta(pattern=rf"(?s)\A(?=[^{TURN_END}]*\Z).*\S", max_length=MAX_PROMPT_CHARS)]
"""One prompt, which is not empty and does not hold what separates turns."""
Entry = TypeVar("Entry")


class Line(msgspec.Struct):
    """One line: it asks in one of these fields."""

    turns: Annotated[list[Text], Meta(min_length=1)] | None = None
    question: Text | None = None
    prompt: Text | None = None


def in_words(source: str) -> bool:
    """Return whether a source of questions holds text prompts for a language model alone, without frames."""
    return source == "text" or source.startswith(TEXT_FILE)


def read_lines(path: Path, form: type[Entry]) -> list[tuple[str, Entry]]:
    """Return where each JSON object of a .jsonl or .jsonl.gz file stands, and the object; blank lines do not count.

    Raises ValueError, in one sentence that names file, line and field, for a file that cannot be used.
    """
    try:
        data = path.read_bytes()
        content = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ValueError(f"prompts {path} cannot be read: {reason}") from None
    found: list[tuple[str, Entry]] = []
    # Not splitlines: a JSON string may hold characters that it takes for the end of a line.
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            where = f"{path} line {number}"
            try:
                found.append((where, msgspec.json.decode(line, type=form)))
            except (msgspec.DecodeError, RecursionError) as error:
                raise ValueError(f"{where}: {error}") from None
    return found


def load_prompts(path: Path) -> list[str]:
    """Return the prompts of a file, in its order. Raises ValueError as `read_lines`, and for one without prompts."""
    prompts = [_prompt(where, line) for where, line in read_lines(path, Line)]
    if not prompts:
        raise ValueError(f"{path} holds no prompts; give one JSON object a line with {KNOWN}")
    return prompts


def _prompt(where: str, line: Line) -> str:
    prompt = line.turns[0] if line.turns else line.question or line.prompt
    if prompt is None:
        raise ValueError(f"{where} asks nothing; it needs {KNOWN}")
    return prompt


def pick(prompts: list[Entry], count: int, seed: int = 0) -> list[Entry]:
    """Return `count` different prompts, spread evenly over the file so that every part has its share.

    Raises ValueError where there are fewer: a prompt that comes twice would be answered from memory (n-grams).
    """
    if count > len(prompts):
        raise ValueError(
            f"{count} prompts were asked for, those to warm up or to tune on among them, and the file holds "
            f"{len(prompts)}; ask for fewer (--steps)"
        )
    return [prompts[(place * len(prompts) // count + seed) % len(prompts)] for place in range(count)]
