"""Text prompts from local files of one JSON object a line: GSM8K, HumanEval, MT-Bench, Spec-Bench, a sample of our own.

The fields of its first line decide the form of a file. Of a conversation only the first turn is used. Prompts are
put word for word as the file has them, in the model's own chat template.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from speculation.language.prompts import TURN_END
from speculation.wire import MAX_PROMPT_CHARS

TEXT_FILE = "text:"
"""What a source of questions begins with that names a file."""
SAMPLE = Path(__file__).parent / "data" / "prompts.jsonl"
KNOWN = "question and answer (GSM8K), prompt and task_id (HumanEval), turns and category (MT-Bench, Spec-Bench)"
Text = Annotated[str, Meta(pattern=rf"(?s)\A(?=[^{TURN_END}]*\Z).*\S", max_length=MAX_PROMPT_CHARS)]
"""One turn, which is not empty and does not hold what separates turns."""
Entry = TypeVar("Entry")


class Gsm8k(msgspec.Struct):
    """Cobbe et al., arXiv 2110.14168."""

    question: Text
    answer: str


class HumanEval(msgspec.Struct):
    """Chen et al., arXiv 2107.03374."""

    prompt: Text
    task_id: str


class Turns(msgspec.Struct):
    """MT-Bench (arXiv 2306.05685) and Spec-Bench (arXiv 2401.07851)."""

    turns: Annotated[list[Text], Meta(min_length=1)]
    category: str


FORMS: dict[Any, Callable[[Any], tuple[str, str]]] = {
    Gsm8k: lambda line: ("gsm8k", line.question),
    HumanEval: lambda line: ("human_eval", line.prompt),
    Turns: lambda line: (line.category, line.turns[0]),
}
"""Every form's category and prompt of a line."""


@dataclass(frozen=True)
class TextPrompt:
    """One prompt: its category in the file's own words, the text, and where it stands."""

    category: str
    text: str
    where: str


def in_words(source: str) -> bool:
    """Return whether a source of questions holds text prompts for a language model alone, without frames."""
    return source == "text" or source.startswith(TEXT_FILE)


def read_lines(path: Path, read: Callable[[dict[str, Any], str], Entry]) -> list[Entry]:
    """Return what `read` makes of each JSON object of a .jsonl or .jsonl.gz file and of where it stands.

    Blank lines do not count. Raises ValueError, in one sentence that names file, line and field, for a file that cannot
    be used; `read` may raise msgspec's errors for that.
    """
    try:
        data = path.read_bytes()
        content = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ValueError(f"prompts {path} cannot be read: {reason}") from None
    entries: list[Entry] = []
    # Not splitlines: a JSON string may hold characters that it takes for the end of a line.
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            where = f"{path} line {number}"
            try:
                entries.append(read(msgspec.json.decode(line, type=dict[str, Any]), where))
            except (msgspec.DecodeError, RecursionError) as error:
                raise ValueError(f"{where}: {error}") from None
    return entries


def load_prompts(path: Path) -> list[TextPrompt]:
    """Return the prompts of a .jsonl or .jsonl.gz file, in its order. Raises ValueError as `read_lines`."""
    form: Any = None

    def prompt(fields: dict[str, Any], where: str) -> TextPrompt:
        nonlocal form
        form = form or next((each for each in FORMS if set(each.__struct_fields__) <= fields.keys()), None)
        if form is None:
            raise ValueError(f"{where} has the fields {', '.join(sorted(fields)) or 'none'}; it needs {KNOWN}")
        category, text = FORMS[form](msgspec.convert(fields, form))
        return TextPrompt(category, text, where)

    prompts = read_lines(path, prompt)
    if not prompts:
        raise ValueError(f"{path} holds no prompts; give one JSON object a line with {KNOWN}")
    return prompts


def pick(prompts: list[Entry], count: int, seed: int = 0) -> list[Entry]:
    """Return `count` different prompts, spread evenly over the file so that every category has its share.

    Raises ValueError where there are fewer: a prompt that comes twice would be answered from memory (n-grams).
    """
    if count > len(prompts):
        raise ValueError(
            f"{count} prompts were asked for, those to warm up or to tune on among them, and the file holds "
            f"{len(prompts)}; ask for fewer (--steps)"
        )
    return [prompts[(place * len(prompts) // count + seed) % len(prompts)] for place in range(count)]
