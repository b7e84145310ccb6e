"""A goal's feedback and end as lines of text for a person. No ROS."""

from __future__ import annotations

from collections.abc import Iterable

from spec_vlm_nav.client import STOPPED, GoalEnd, Outcome, Progress
from speculation.language.thinking import goes_on

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def printable(text: str) -> str:
    """Return a text on one line, without what would steer a terminal: it may come from a model or a network."""
    return "".join(each if each.isprintable() else " " for each in text)


class Transcript:
    """Feedback as lines of text, each fact once."""

    def __init__(self) -> None:
        self._last = Progress()
        self._text = ""
        self._written = True

    def take(self, progress: Progress) -> list[str]:
        """Return the lines that a feedback message adds."""
        last, self._last = self._last, progress
        lines: list[str] = []
        if progress.understood and progress.understood != last.understood:
            lines.append(f"Understood: {printable(progress.understood)}")
        if progress.answer and progress.answer != self._text:
            if not goes_on(self._text, progress.answer):
                lines += self._answer(self._text)
            self._text, self._written = progress.answer, False
        decision = (progress.step, progress.action, progress.complete)
        if progress.action and decision != (last.step, last.action, last.complete):
            if progress.complete:
                lines += self._answer(progress.reasoning or self._text)
            if decision[:2] != (last.step, last.action):
                after = "" if progress.complete else ", before the answer's end"
                lines.append(f"{progress.step:4d}  {printable(progress.action)}  ({progress.source}{after})")
        if progress.link and progress.link != (last.link or "nominal"):
            lines.append(f"link  {printable(progress.link)}")
        if (progress.state, progress.reason) != (last.state, last.reason) and progress.state:
            reason = f": {printable(progress.reason)}" if progress.reason else ""
            lines.append(f"      {printable(progress.state)}{reason}")
        return lines

    def rest(self) -> list[str]:
        """Return the line of an answer that was not written yet, at the end of the goal."""
        return self._answer(self._text)

    def live(self, width: int) -> str:
        """Return the running answer for a terminal of `width` columns, its guess dimmed; its end, if it is longer."""
        committed, guess = printable(self._last.answer), printable(self._last.guess)
        if self._written and not guess:
            return ""
        room = max(8, width - 7)
        guess = guess[: room // 2]
        return f"      {committed[-(room - len(guess)) :]}{DIM}{guess}{PLAIN}"

    def _answer(self, answer: str) -> list[str]:
        if self._written or not answer.strip():
            return []
        self._written = True
        return [f"      {printable(answer).strip()}"]


def closing_words(end: GoalEnd, server: str, seconds: float) -> Iterable[str]:
    """Return the last lines for a person; `server` is the full name of the node that takes goals."""
    figures = f"{end.actions} actions, {end.distance_m:.1f} m, {end.elapsed_s or seconds:.0f} s"
    code = f" [{end.code}]" if end.code not in ("", "NONE") else ""
    message = printable(end.message)
    if end.message == STOPPED:
        yield STOPPED
    elif end.outcome is Outcome.FOUND:
        yield f"found: {message or 'the robot stopped before it'} ({figures})"
    elif end.outcome is Outcome.NOT_FOUND:
        yield f"not here: {message} ({figures})"
    elif end.outcome is Outcome.FAILED:
        yield f"not found{code}: {message} ({figures})"
    elif end.outcome is Outcome.REFUSED:
        yield f"refused{code}: {message}"
        if end.code != "INVALID_INPUT":
            yield f"is {server} active? ros2 lifecycle get {server}"
    elif end.stopped:
        yield f"cancelled: the robot stands ({figures})"
    else:
        yield f"cancelled: {message}"
    if not end.stopped:
        yield "the stop was NOT confirmed: watch the robot, and use the remote control or e_stop if it moves"
