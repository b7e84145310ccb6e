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
LONGEST_MARK: Final = max(len(OPENS), len(CLOSES))
"""Characters of the longer mark."""
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


def reader(tokenizer: Any, constrained: bool = False) -> Callable[[Sequence[int]], str]:
    """Return what reads an answer's tokens as text, without those that only mark its end.

    The marks of thinking are kept also where the tokenizer calls them special: without them nobody could tell the
    answer from its thinking. Where they are tokens, only these read as marks: what spells one in other tokens, as a
    model does that quotes it, reads with a space in front of its last character. A tokenizer without such tokens spells
    all its marks, but in a `constrained` answer, which such a model begins without thinking, none is meant as one.
    """
    marks = {token: mark for mark, token in tokenizer.get_added_vocab().items() if mark in (OPENS, CLOSES)}
    quotes = constrained or bool(marks)

    def plain(tokens: Sequence[int]) -> str:
        text = str(tokenizer.decode(list(tokens), skip_special_tokens=True)) if tokens else ""
        return text.replace(OPENS, "<think >").replace(CLOSES, "</think >") if quotes else text

    def read(tokens: Sequence[int]) -> str:
        parts, first = list[str](), 0
        for place, token in enumerate(tokens):
            if token in marks:
                parts += [plain(tokens[first:place]), marks[token]]
                first = place + 1
        return "".join([*parts, plain(tokens[first:])])

    return read


def split_thinking(text: str) -> tuple[str, str]:
    """Return what is thought in an answer's text, without marks, and what it says besides.

    Up to the last mark that closes it everything is thought, and so is everything behind one that opens it, where
    nothing is said before. A mark that opens it further on is a part of what is said: the model quotes it.
    """
    closed, _, rest = text.rpartition(CLOSES)
    said, _, going_on = rest.partition(OPENS)
    if said.strip():
        said, going_on = rest, ""
    thought = "\n".join(part.strip() for part in (closed, going_on) if part.strip())
    return thought.replace(OPENS, "").replace(CLOSES, "").strip(), said


def shortened(text: str) -> str:
    """Return an answer's text, which may still grow, with the newest MAX_SHOWN_CHARS of its thinking."""
    end = text.rfind(CLOSES)
    if end < 0:
        end = len(text) if text.lstrip().startswith(OPENS) else 0
    return text if end <= MAX_SHOWN_CHARS else SHORTENED + text[end - MAX_SHOWN_CHARS :]


def goes_on(before: str, after: str) -> bool:
    """Return whether `after` may be the same answer as `before`, with more text; both come from `shortened`.

    Where thinking was shortened its beginning is missing, so two answers that think are taken for one.
    """
    return after.startswith(before) or (after.startswith(SHORTENED) and before.lstrip().startswith(OPENS))
