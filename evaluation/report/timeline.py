"""The time line of one decoding step: what edge, link and cloud did when, from the spans of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Polygon

from speculation.trace import Kind, Lane, Span

COLOURS = {
    Kind.PREFILL: "#9aa5b1",
    Kind.DRAFT: "#2f6fde",
    Kind.PREDRAFT: "#2aa876",
    Kind.QUEUE: "#e6d5b8",
    Kind.VERIFY: "#e8833a",
    Kind.DECODE: "#b0457b",
}
LABELS = {
    Kind.PREFILL: "prefill (image and prompt)",
    Kind.PREDRAFT: "pre-draft (while a draft is verified)",
    Kind.DRAFT: "draft (the cloud idles)",
}
LANDINGS = {
    "hit": ("#15803d", "commit, hit: next draft ready"),
    "miss": ("#c62828", "commit, miss"),
    "neither": ("#4b5563", "commit"),
}
EARLY = {True: ("#7c3aed", "early token of an exit"), False: ("#b7a3da", "early token, too late")}
"""By whether the early token came in time to be used."""
CLOSE_UP_ROUNDS = 4
_CENTRE = {Lane.EDGE: 2.0, Lane.LINK: 1.0, Lane.CLOUD: 0.0}
_HEIGHT = 0.5
_EDGE_BOTTOM, _CLOUD_TOP = _CENTRE[Lane.EDGE] - _HEIGHT / 2, _CENTRE[Lane.CLOUD] + _HEIGHT / 2
_LABEL_WIDTH = 0.036
"""Of the plot's width; labels that are closer than this stand above one another."""


@dataclass(frozen=True)
class Step:
    """One step cut out of a trace: its spans, and the action that the robot took from it ("" where it is not known)."""

    number: int
    spans: tuple[Span, ...]
    whole: Span
    action: str = ""
    decision: int | None = None

    @property
    def seconds(self) -> float:
        """How long the step took."""
        return self.whole.end - self.whole.start

    def of(self, *kinds: Kind) -> list[Span]:
        """Return the spans of these kinds, in order."""
        return [span for span in self.spans if span.name in kinds]


def steps(spans: Sequence[Span]) -> list[Step]:
    """Return a trace's complete steps in their order, each with the decision that followed it."""
    ordered = sorted(spans, key=lambda span: span.start)
    wholes = [span for span in ordered if span.name == Kind.STEP]
    found = []
    for place, whole in enumerate(wholes):
        until = wholes[place + 1].start if place + 1 < len(wholes) else float("inf")
        made = (span for span in ordered if span.name == Kind.DECISION and whole.end <= span.start <= until)
        decision = next((span.args for span in made), {})
        number, index = whole.args.get("step"), decision.get("decision")
        if isinstance(number, int):
            own = tuple(span for span in ordered if span.args.get("step") == number)
            action = str(decision.get("action", ""))
            found.append(Step(number, own, whole, action, index if isinstance(index, int) else None))
    return found


def median_step(found: Sequence[Step]) -> Step:
    """Return the step of median duration. Raises ValueError if there is none."""
    if not found:
        raise ValueError("the trace holds no complete step; let the robot answer at least once")
    return sorted(found, key=lambda step: step.seconds)[(len(found) - 1) // 2]


def hidden_s(step: Step) -> tuple[float, float]:
    """Return for how many seconds a draft was under way, and for how many of these the edge pre-drafted."""
    rounds, ahead = step.of(Kind.ROUND), step.of(Kind.PREDRAFT)
    shared = sum(max(0.0, min(a.end, b.end) - max(a.start, b.start)) for a in rounds for b in ahead)
    return sum(span.end - span.start for span in rounds), shared


def plot_step(step: Step) -> Figure:
    """Return the whole step above, and below it a close-up of a few rounds where pre-drafting paid most."""
    part = _close_up(step)
    figure = Figure(figsize=(12, 7.6 if part else 4.4), layout="constrained")
    figure.suptitle(f"{_title(step)}\n{_summary(step)}", fontsize=12, x=0.01, ha="left")
    axes = figure.subplots(2 if part else 1, 1, squeeze=False)[:, 0]
    _Window(axes[0], step, step.whole.start, step.whole.end, detailed=not part).plot()
    if part is not None:
        _Window(axes[1], step, *part, detailed=True).plot()
        for moment in part:
            axes[0].axvline(1e3 * (moment - step.whole.start), color="#1c2430", linewidth=0.8, linestyle=":")
        axes[0].set_title("the whole step; dotted: the part below", fontsize=10, loc="left")
        axes[1].set_title("close-up", fontsize=10, loc="left")
    axes[-1].set_xlabel("ms since the question")
    figure.legend(handles=_legend(step), loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    return figure


class _Window:
    """A step from one moment to another on one pair of axes, in milliseconds; `detailed` adds labels."""

    def __init__(self, axes: Axes, step: Step, start: float, end: float, detailed: bool) -> None:
        self._axes, self._step, self._detailed = axes, step, detailed
        self._spans = [span for span in step.spans if span.end >= start and span.start <= end]
        self._first, self._last = self._ms(start), self._ms(end)

    def plot(self) -> None:
        """Fill the axes."""
        axes, width = self._axes, self._last - self._first
        lanes = [lane for lane in Lane if any(span.lane is lane for span in self._step.spans)]
        self._work(Lane.EDGE in lanes)
        self._messages()
        self._early_tokens()
        self._commits()
        axes.set_xlim(self._first - 0.01 * width, self._last + 0.02 * width)
        axes.set_ylim(min(_CENTRE[lane] for lane in lanes) - 0.45, 2.95)
        axes.set_yticks([_CENTRE[lane] for lane in lanes], [lane.value for lane in lanes], fontsize=11)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)

    def _ms(self, moment: float) -> float:
        return 1e3 * (moment - self._step.whole.start)

    def _of(self, kind: Kind) -> list[Span]:
        return [span for span in self._spans if span.name == kind]

    def _work(self, shaded: bool) -> None:
        """Bars in their lanes; the cloud's forwards shade the edge above them."""
        for span in self._spans:
            kind = next((kind for kind in COLOURS if kind == span.name), None)
            if kind is None:
                continue
            start, end = self._ms(span.start), self._ms(span.end)
            bottom, middle = _CENTRE[span.lane] - _HEIGHT / 2, (start + end) / 2
            look: dict[str, Any] = {"facecolor": COLOURS[kind], "edgecolor": "w", "linewidth": 0.4}
            self._axes.broken_barh([(start, end - start)], (bottom, _HEIGHT), **look)
            if shaded and kind in (Kind.VERIFY, Kind.DECODE):
                self._axes.axvspan(start, end, color=COLOURS[kind], alpha=0.09, linewidth=0, zorder=0)
            wide = end - start > 0.07 * (self._last - self._first)
            if self._detailed and wide and self._first <= middle <= self._last:
                at = middle, _CENTRE[span.lane]
                self._axes.text(*at, span.name, ha="center", va="center", fontsize=9, color="w")

    def _messages(self) -> None:
        """Lines between the lanes: up to the cloud, down to the edge."""
        for way in self._of(Kind.ROUND):
            work = [
                span
                for span in self._step.of(Kind.QUEUE, Kind.VERIFY, Kind.DECODE)
                if span.args["round"] == way.args["round"] and way.start - 1e-6 <= span.start <= way.end
            ]
            if not work:
                continue
            moments = way.start, min(span.start for span in work), max(span.end for span in work), way.end
            sent, began, ended, landed = map(self._ms, moments)
            corners = [(sent, _EDGE_BOTTOM), (began, _CLOUD_TOP), (ended, _CLOUD_TOP), (landed, _EDGE_BOTTOM)]
            self._axes.add_patch(Polygon(corners, closed=True, color="#6b7684", alpha=0.14, linewidth=0))
            for (x, y), (to_x, to_y) in (corners[:2], corners[2:]):
                self._axes.plot([x, to_x], [y, to_y], color="#5a6675", linewidth=0.9)

    def _early_tokens(self) -> None:
        """Ticks on the link, with the exit layer where there is room for labels."""
        rows: list[float] = []
        for early in self._of(Kind.EARLY):
            at, (colour, _) = self._ms(early.start), EARLY[bool(early.args.get("used"))]
            width = 2.2 if self._detailed else 1.1
            self._axes.plot([at, at], [0.72, 1.28], color=colour, linewidth=width, solid_capstyle="butt")
            if self._detailed and self._first <= at <= self._last:
                room = _LABEL_WIDTH * (self._last - self._first)
                row = next((i for i, last in enumerate(rows) if at - last >= room), len(rows))
                rows[row : row + 1] = [at]
                text = f"exit {early.args['layer']}"
                self._axes.text(at, 1.31 + 0.15 * row, text, color=colour, fontsize=8, ha="center")

    def _commits(self) -> None:
        for commit in self._of(Kind.COMMIT):
            at, landing = self._ms(commit.start), str(commit.args["landing"])
            if not self._first - 1e-6 <= at <= self._last + 1e-6:
                continue
            colour, _ = LANDINGS[landing]
            self._axes.plot([at, at], [_EDGE_BOTTOM, 2.42], color=colour, linewidth=1.4)
            self._axes.plot([at], [2.42], marker="v", color=colour, markersize=7)
            label = f"+{commit.args['tokens']}"
            label += f" {landing}" if self._detailed and landing != "neither" else ""
            self._axes.text(at, 2.55, label, color=colour, ha="center", fontsize=9, fontweight="bold")


def _close_up(step: Step) -> tuple[float, float] | None:
    """Return the few rounds with the most hits, early tokens breaking ties; None for a step that is short anyway."""
    rounds, commits = step.of(Kind.ROUND), step.of(Kind.COMMIT)
    if len(rounds) <= CLOSE_UP_ROUNDS + 1:
        return None
    early = [span for span in step.of(Kind.EARLY) if span.args.get("used")]
    windows = [(a.start, b.end) for a, b in zip(rounds, rounds[CLOSE_UP_ROUNDS - 1 :], strict=False)]

    def worth(window: tuple[float, float]) -> tuple[int, int]:
        start, end = window
        hits = sum(span.args["landing"] == "hit" for span in commits if start <= span.start <= end)
        return hits, sum(start <= span.start <= end for span in early)

    return max(windows, key=worth)


def _title(step: Step) -> str:
    name = "one step" if step.decision is None else f"step {step.decision}"
    action = f": {step.action}" if step.action else ""
    return f"{name}{action} ({step.whole.args.get('tokens', '?')} tokens in {1e3 * step.seconds:.0f} ms)"


def _summary(step: Step) -> str:
    landings = [span.args["landing"] for span in step.of(Kind.COMMIT)]
    judged = landings.count("hit") + landings.count("miss")
    away, hidden = hidden_s(step)
    if not judged:
        return f"{len(landings)} commits" if landings else "the edge alone"
    return (
        f"drafts were under way for {1e3 * away:.0f} ms, and for {1e3 * hidden:.0f} ms of these the edge drafted on"
        f" · {landings.count('hit')} of {judged} commits landed on a finished draft"
    )


def _legend(step: Step) -> list[Patch | Line2D]:
    """Return what occurs in the step."""
    handles: list[Patch | Line2D] = [
        Patch(color=colour, label=LABELS.get(kind, kind.value)) for kind, colour in COLOURS.items() if step.of(kind)
    ]
    landed = {span.args["landing"] for span in step.of(Kind.COMMIT)}
    for landing, (colour, label) in LANDINGS.items():
        if landing in landed:
            handles.append(Line2D([], [], color=colour, marker="v", linestyle="", label=label))
    used = {bool(span.args.get("used")) for span in step.of(Kind.EARLY)}
    for in_time, (colour, label) in EARLY.items():
        if in_time in used:
            handles.append(Line2D([], [], color=colour, marker="|", markersize=11, linestyle="", label=label))
    return handles
