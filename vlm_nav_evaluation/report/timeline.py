"""The time line of one decoding step: what edge, link and cloud did when, from the spans of a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from speculation.trace import Kind, Lane, Span
from vlm_nav_evaluation.plots import new_figure

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
"""True: the early token came in time to be used."""
LEGEND = [
    *(LABELS.get(kind, kind.value) for kind in COLOURS),
    *(label for _, label in (*LANDINGS.values(), *EARLY.values())),
]
"""The legend lists labels in this order."""
CLOSE_UP_ROUNDS = 4
_CENTRE = {Lane.EDGE: 2.0, Lane.LINK: 1.0, Lane.CLOUD: 0.0}
_HEIGHT, _EDGE_BOTTOM, _CLOUD_TOP = 0.5, 1.75, 0.25
"""How high bars are, and where those of edge and cloud end."""
_LABEL_WIDTH = 0.036
"""Labels that are closer than this share of the plot's width stand above one another."""


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
        """Return how long the step took."""
        return self.whole.end - self.whole.start

    @property
    def useful_forwards(self) -> int:
        """Return how many draft forwards proposed a committed token; 0 in a trace that does not hold it."""
        count = self.whole.args.get("useful_forwards")
        return count if isinstance(count, int) else 0

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


def most_useful_step(found: Sequence[Step]) -> Step:
    """Return the step in which most draft forwards proposed what was committed, of several the one of median duration.

    A robot that remembers its answers commits most tokens without a draft forward. Raises ValueError if there is none.
    """
    if not found:
        raise ValueError("the trace holds no complete step; let the robot answer at least once")
    most = max(step.useful_forwards for step in found)
    best = sorted((step for step in found if step.useful_forwards == most), key=lambda step: step.seconds)
    return best[(len(best) - 1) // 2]


def plot_step(step: Step) -> Figure:
    """Return the whole step above, and below it a close-up of a few rounds where pre-drafting paid most."""
    part = _close_up(step)
    figure = new_figure(7.6 if part else 4.4, 12)
    figure.suptitle(f"{_title(step)}\n{_summary(step)}", fontsize=12, x=0.01, ha="left")
    axes = figure.subplots(2 if part else 1, 1, squeeze=False)[:, 0]
    _window(axes[0], step, step.whole.start, step.whole.end, detailed=not part)
    if part is not None:
        _window(axes[1], step, *part, detailed=True)
        for moment in part:
            axes[0].axvline(1e3 * (moment - step.whole.start), color="#1c2430", linewidth=0.8, linestyle=":")
        axes[0].set_title("the whole step; dotted: the part below", fontsize=10, loc="left")
        axes[1].set_title("close-up", fontsize=10, loc="left")
    _finish(figure, axes)
    return figure


def plot_steps(found: Mapping[str, Step]) -> Figure:
    """Return one answer as each of several modes made it, by their names, below one another over the same time."""
    longest = max(step.seconds for step in found.values())
    figure = new_figure(0.8 + 2.6 * len(found), 12)
    axes = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    for each, (name, step) in zip(axes, found.items(), strict=True):
        _window(each, step, step.whole.start, step.whole.start + longest, detailed=False)
        tokens = step.whole.args.get("tokens", "?")
        each.set_title(f"{name}: {tokens} tokens in {1e3 * step.seconds:.0f} ms", fontsize=11, loc="left")
    _finish(figure, axes)
    return figure


def _finish(figure: Figure, axes: Any) -> None:
    """Name the time axis, and all that is shown in one legend."""
    axes[-1].set_xlabel("ms since the question")
    found: dict[str, Any] = {}
    for each in axes[::-1]:
        found |= {label: handle for handle, label in zip(*each.get_legend_handles_labels(), strict=True)}
    shown = {label: found[label] for label in LEGEND if label in found}
    figure.legend(shown.values(), shown, loc="outside lower center", ncols=5, fontsize=9, frameon=False)


def _window(axes: Any, step: Step, start: float, end: float, detailed: bool) -> None:
    """Plot a step from one moment to another, in milliseconds since its start; `detailed` adds labels."""

    def ms(moment: float) -> float:
        return 1e3 * (moment - step.whole.start)

    spans = [span for span in step.spans if span.end >= start and span.start <= end]
    lanes = [lane for lane in Lane if any(span.lane is lane for span in step.spans)]
    first, last = ms(start), ms(end)
    width = last - first
    exits: list[float] = []  # where the newest label of each row of exit labels stands
    for span in spans:
        begin, until = ms(span.start), ms(span.end)
        inside = first - 1e-6 <= begin <= last + 1e-6
        if span.name in COLOURS:
            kind = Kind(span.name)
            middle, colour = (begin + until) / 2, COLOURS[kind]
            axes.broken_barh([(begin, until - begin)], (_CENTRE[span.lane] - _HEIGHT / 2, _HEIGHT), facecolor=colour,
                             edgecolor="w", linewidth=0.4, label=LABELS.get(kind, kind.value))  # fmt: skip
            if Lane.EDGE in lanes and kind in (Kind.VERIFY, Kind.DECODE):
                axes.axvspan(begin, until, color=colour, alpha=0.09, linewidth=0, zorder=0)
            if detailed and until - begin > 0.07 * width and first <= middle <= last:
                axes.text(middle, _CENTRE[span.lane], span.name, ha="center", va="center", fontsize=9, color="w")
        elif span.name == Kind.ROUND:
            _messages(axes, span, step, ms)
        elif span.name == Kind.EARLY:
            colour, label = EARLY[bool(span.args.get("used"))]
            axes.plot([begin, begin], [0.72, 1.28], color=colour, linewidth=2.2 if detailed else 1.1,
                      solid_capstyle="butt")  # fmt: skip
            axes.plot([], [], "|", color=colour, markersize=11, label=label)
            if detailed and inside:
                row = next((i for i, at in enumerate(exits) if begin - at >= _LABEL_WIDTH * width), len(exits))
                exits[row : row + 1] = [begin]
                text = f"exit {span.args['layer']}"
                axes.text(begin, 1.31 + 0.15 * row, text, color=colour, fontsize=8, ha="center")
        elif span.name == Kind.COMMIT and inside:
            landing = str(span.args["landing"])
            colour, label = LANDINGS[landing]
            axes.plot([begin, begin], [_EDGE_BOTTOM, 2.42], color=colour, linewidth=1.4)
            axes.plot([begin], [2.42], "v", color=colour, markersize=7, label=label)
            text = f"+{span.args['tokens']}" + (f" {landing}" if detailed and landing != "neither" else "")
            axes.text(begin, 2.55, text, color=colour, ha="center", fontsize=9, fontweight="bold")
    axes.set_xlim(first - 0.01 * width, last + 0.02 * width)
    axes.set_ylim(min(_CENTRE[lane] for lane in lanes) - 0.45, 2.95)
    axes.set_yticks([_CENTRE[lane] for lane in lanes], [lane.value for lane in lanes], fontsize=11)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _messages(axes: Any, way: Span, step: Step, ms: Callable[[float], float]) -> None:
    """Lines between the lanes: up to the cloud, down to the edge."""
    work = [
        span
        for span in step.of(Kind.QUEUE, Kind.VERIFY, Kind.DECODE)
        if span.args["round"] == way.args["round"] and way.start - 1e-6 <= span.start <= way.end
    ]
    if not work:
        return
    moments = way.start, min(span.start for span in work), max(span.end for span in work), way.end
    heights = _EDGE_BOTTOM, _CLOUD_TOP, _CLOUD_TOP, _EDGE_BOTTOM
    times = [ms(moment) for moment in moments]
    axes.fill(times, heights, color="#6b7684", alpha=0.14, linewidth=0)
    for way_up_or_down in (slice(0, 2), slice(2, 4)):
        axes.plot(times[way_up_or_down], heights[way_up_or_down], color="#5a6675", linewidth=0.9)


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
    rounds, ahead = step.of(Kind.ROUND), step.of(Kind.PREDRAFT)
    away = sum(span.end - span.start for span in rounds)
    hidden = sum(max(0.0, min(a.end, b.end) - max(a.start, b.start)) for a in rounds for b in ahead)
    if not judged:
        return f"{len(landings)} commits" if landings else "the edge alone"
    return (
        f"drafts were under way for {1e3 * away:.0f} ms, and for {1e3 * hidden:.0f} ms of these the edge drafted on"
        f" · {landings.count('hit')} of {judged} commits landed on a finished draft"
    )
