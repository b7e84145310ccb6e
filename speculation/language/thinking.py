"""Models that think before they answer: `<think> reasoning </think> answer`, and which part of a text is which.

Some chat templates begin the thinking by themselves (Qwen3-VL-Thinking, QwQ), so that the tokens of the answer lack the
first mark; others leave it to the model (Qwen3). People are shown the thinking as reasoning, and no action is ever read
out of it. The automaton of such answers is `speculation.language.grammar.ThinkingAutomaton`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from speculation.wire import Thinking

OPENS: Final = "<think>"
CLOSES: Final = "</think>"
_SPELLED: Final = "</think >"
"""What a text shows where other tokens than the mark spell it: a model may quote the mark while it thinks."""
MAX_SHOWN_CHARS = 1000
"""How much of its thinking people are shown, the newest."""
SHORTENED: Final = f"{OPENS}... "
"""How a shown text begins whose thinking is longer."""
UNFINISHED = "nothing stands behind the thinking; raise max_tokens or take constrained answers"


def thinking_of(tokenizer: Any, template: str, prompt: str) -> Thinking | None:
    """Return how a model thinks by its tokenizer and chat template; None where it does not.

    `prompt` is a chat that the template has rendered, ready for the answer. Raises ValueError where that begins to
    think and the marks are no tokens: nobody could tell where the answer begins.
    """
    marks, end = tokenizer.get_added_vocab(), prompt.rstrip()
    opened = end.endswith(OPENS)
    if end.endswith(CLOSES) or not (opened or CLOSES in template):
        return None
    if OPENS in marks and CLOSES in marks:
        return Thinking(int(marks[OPENS]), int(marks[CLOSES]), opened)
    if opened:
        raise ValueError(
            f"the chat template begins to think ({OPENS}), but {OPENS} and {CLOSES} are not tokens of the tokenizer; "
            "add them to it, or take a template that does not think"
        )
    return None


def begun(thinking: Thinking | None) -> str:
    """Return what the prompt has begun the answer's text with."""
    return OPENS if thinking is not None and thinking.opened else ""


def reader(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Return what reads an answer's tokens as text, without those that only mark its end.

    The marks of thinking are kept also where the tokenizer calls them special: without them nobody could tell the
    answer from its thinking. Where they are tokens, only these read as the mark that closes it.
    """
    marks = {token: mark for mark, token in tokenizer.get_added_vocab().items() if mark in (OPENS, CLOSES)}

    def plain(tokens: Sequence[int]) -> str:
        text = str(tokenizer.decode(list(tokens), skip_special_tokens=True)) if tokens else ""
        return text.replace(CLOSES, _SPELLED) if marks else text

    def read(tokens: Sequence[int]) -> str:
        parts, first = list[str](), 0
        for place, token in enumerate(tokens):
            if token in marks:
                parts += [plain(tokens[first:place]), marks[token]]
                first = place + 1
        return "".join([*parts, plain(tokens[first:])])

    return read


def joined(before: str, after: str) -> str:
    """Return a text and what `reader` reads behind it as one, in which no mark is spelled across the seam."""
    seam = before[1 - len(CLOSES) :] + after[: len(CLOSES) - 1]
    return f"{before} {after}" if CLOSES in seam else before + after


def split_thinking(text: str) -> tuple[str, str]:
    """Return what is thought in an answer's text, without marks, and what it says besides.

    Up to the last mark that closes it everything is thought, and so is everything behind one that opens it again.
    """
    closed, _, rest = text.rpartition(CLOSES)
    said, _, going_on = rest.partition(OPENS)
    thought = "\n".join(part.strip() for part in (closed, going_on) if part.strip())
    return thought.replace(OPENS, "").replace(CLOSES, "").strip(), said


def shortened(text: str) -> str:
    """Return an answer's text, which may still grow, with the newest MAX_SHOWN_CHARS of its thinking."""
    end = text.rfind(CLOSES)
    if end < 0:
        end = len(text) if text.lstrip().startswith(OPENS) else 0
    return text if end <= MAX_SHOWN_CHARS else SHORTENED + text[end - MAX_SHOWN_CHARS :]


def goes_on(before: str, after: str) -> bool:
    """Return whether the text `after` of `shortened` is of the same answer as `before`, further on."""
    return after.startswith(before) or (after.startswith(SHORTENED) and before.lstrip().startswith(OPENS))
