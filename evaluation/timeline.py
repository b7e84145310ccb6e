"""One decoding step as a picture: what edge, link and cloud did when, from the spans of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
LANDINGS = {"hit": "#15803d", "miss": "#c62828", "neither": "#4b5563"}
EARLY_USED, EARLY_LATE = "#7c3aed", "#b7a3da"
CLOSE_UP_ROUNDS = 4
_TOP = {Lane.EDGE: 2.0, Lane.LINK: 1.0, Lane.CLOUD: 0.0}
_HEIGHT = 0.5
_LABEL_WIDTH = 0.036
"""Of the picture's width; labels that are closer than this stand above one another."""


@dataclass(frozen=True)
class Step:
    """One step cut out of a trace: its spans, and what a body made of the answer ("" where it is not known)."""

    number: int
    spans: tuple[Span, ...]
    whole: Span
    action: str = ""
    decision: int | None = None

    @property
    def seconds(self) -> float:
        """How long the step took."""
        return self.whole.end - self.whole.start

    def of(self, *kinds: Kind, lane: Lane | None = None) -> list[Span]:
        """Return the spans of these kinds, in order."""
        names = {kind.value for kind in kinds}
        return [span for span in self.spans if span.name in names and lane in (None, span.lane)]


def steps(spans: Sequence[Span]) -> list[Step]:
    """Return a trace's complete steps in their order, each with the decision that followed it."""
    grouped: dict[int, list[Span]] = {}
    for span in spans:
        number = span.args.get("step")
        if isinstance(number, int):
            grouped.setdefault(number, []).append(span)
    wholes = {n: span for n, own in grouped.items() for span in own if span.name == Kind.STEP.value}
    order = sorted(wholes, key=lambda number: wholes[number].start)
    decisions = [span for span in spans if span.name == Kind.DECISION.value]
    found = []
    for place, number in enumerate(order):
        until = wholes[order[place + 1]].start if place + 1 < len(order) else float("inf")
        made = next((span for span in decisions if wholes[number].end <= span.start <= until), None)
        action = str(made.args.get("action", "")) if made is not None else ""
        decision = made.args.get("decision") if made is not None else None
        own = tuple(sorted(grouped[number], key=lambda span: span.start))
        found.append(Step(number, own, wholes[number], action, decision if isinstance(decision, int) else None))
    return found


def median_step(found: Sequence[Step]) -> Step:
    """Return the step of median duration. Raises ValueError if there is none."""
    if not found:
        raise ValueError("the trace holds no complete step; let the robot answer at least once")
    return sorted(found, key=lambda step: step.seconds)[(len(found) - 1) // 2]


def hidden_s(step: Step) -> tuple[float, float]:
    """Return for how many seconds a draft was under way, and for how many of these the edge pre-drafted."""
    rounds = step.of(Kind.ROUND)
    ahead = step.of(Kind.PREDRAFT)
    shared = sum(max(0.0, min(a.end, b.end) - max(a.start, b.start)) for a in rounds for b in ahead)
    return sum(span.end - span.start for span in rounds), shared


def draw_step(step: Step) -> Figure:
    """Return the whole step above, and below it a close-up of a few rounds where pre-drafting paid most."""
    part = _close_up(step)
    figure = Figure(figsize=(12, 7.6 if part else 4.4), layout="constrained")
    figure.suptitle(f"{_title(step)}\n{_summary(step)}", fontsize=12, x=0.01, ha="left")
    axes = figure.subplots(2 if part else 1, 1, squeeze=False)[:, 0]
    lanes = [lane for lane in Lane if any(span.lane is lane for span in step.spans)]
    whole = (step.whole.start, step.whole.end)
    _draw(axes[0], step, whole, lanes, detailed=not part)
    if part is not None:
        _draw(axes[1], step, part, lanes, detailed=True)
        for axis, moment in ((axes[0], part[0]), (axes[0], part[1])):
            axis.axvline(1e3 * (moment - step.whole.start), color="#1c2430", linewidth=0.8, linestyle=":")
        axes[0].set_title("the whole step; dotted: the part below", fontsize=10, loc="left")
        axes[1].set_title("close-up", fontsize=10, loc="left")
    axes[-1].set_xlabel("ms since the question")
    figure.legend(handles=_legend(step), loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    return figure


def _draw(axes: Axes, step: Step, window: tuple[float, float], lanes: Sequence[Lane], detailed: bool) -> None:
    origin = step.whole.start
    first, last = (1e3 * (moment - origin) for moment in window)
    seen = [span for span in step.spans if span.end >= window[0] and span.start <= window[1]]
    for span in seen:
        start, width = 1e3 * (span.start - origin), 1e3 * (span.end - span.start)
        kind = Kind(span.name) if span.name in {k.value for k in Kind} else None
        if kind in COLOURS:
            bottom = _TOP[span.lane] - _HEIGHT / 2
            axes.broken_barh([(start, width)], (bottom, _HEIGHT), facecolor=COLOURS[kind], edgecolor="w", linewidth=0.4)
            if kind in (Kind.VERIFY, Kind.DECODE) and Lane.EDGE in lanes:
                axes.axvspan(start, start + width, color=COLOURS[kind], alpha=0.09, linewidth=0, zorder=0)
            if detailed and width > 0.07 * (last - first) and first <= start + width / 2 <= last:
                axes.text(
                    start + width / 2, _TOP[span.lane], span.name, ha="center", va="center", fontsize=9, color="w"
                )
    if Lane.LINK in lanes:
        _draw_link(axes, step, seen, origin, (first, last), detailed)
    _draw_commits(axes, seen, origin, (first, last), detailed)
    axes.set_xlim(first - 0.01 * (last - first), last + 0.02 * (last - first))
    axes.set_ylim(min(_TOP[lane] for lane in lanes) - 0.45, 2.95)
    axes.set_yticks([_TOP[lane] for lane in lanes], [lane.value for lane in lanes], fontsize=11)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _draw_link(
    axes: Axes, step: Step, seen: Sequence[Span], origin: float, shown: tuple[float, float], detailed: bool
) -> None:
    """Messages as lines between the lanes: up to the cloud, down to the edge; an exit's words as ticks on the way."""
    edge, cloud = _TOP[Lane.EDGE] - _HEIGHT / 2, _TOP[Lane.CLOUD] + _HEIGHT / 2
    for way in (span for span in seen if span.name == Kind.ROUND.value):
        work = [
            span for span in step.of(Kind.QUEUE, Kind.VERIFY, Kind.DECODE) if span.args["round"] == way.args["round"]
        ]
        work = [span for span in work if way.start - 1e-6 <= span.start <= way.end]
        if not work:
            continue
        corners = [way.start, min(s.start for s in work), max(s.end for s in work), way.end]
        sent, began, ended, landed = (1e3 * (moment - origin) for moment in corners)
        shape = [(sent, edge), (began, cloud), (ended, cloud), (landed, edge)]
        axes.add_patch(Polygon(shape, closed=True, color="#6b7684", alpha=0.14, linewidth=0))
        for start, end, bottom, top in ((sent, began, edge, cloud), (ended, landed, cloud, edge)):
            axes.plot([start, end], [bottom, top], color="#5a6675", linewidth=0.9)
    rows: list[float] = []
    for early in (span for span in seen if span.name == Kind.EARLY.value):
        at = 1e3 * (early.start - origin)
        colour = EARLY_USED if early.args.get("used") else EARLY_LATE
        axes.plot([at, at], [0.72, 1.28], color=colour, linewidth=2.2 if detailed else 1.1, solid_capstyle="butt")
        if detailed and shown[0] <= at <= shown[1]:
            room = _LABEL_WIDTH * (shown[1] - shown[0])
            row = next((i for i, last in enumerate(rows) if at - last >= room), len(rows))
            rows[row : row + 1] = [at]
            axes.text(at, 1.31 + 0.15 * row, f"exit {early.args['layer']}", color=colour, fontsize=8, ha="center")


def _draw_commits(axes: Axes, seen: Sequence[Span], origin: float, shown: tuple[float, float], detailed: bool) -> None:
    for commit in (span for span in seen if span.name == Kind.COMMIT.value):
        at, landing = 1e3 * (commit.start - origin), str(commit.args["landing"])
        if not shown[0] - 1e-6 <= at <= shown[1] + 1e-6:
            continue
        colour = LANDINGS[landing]
        axes.plot([at, at], [_TOP[Lane.EDGE] - _HEIGHT / 2, 2.42], color=colour, linewidth=1.4)
        axes.plot([at], [2.42], marker="v", color=colour, markersize=7)
        word = "" if landing == "neither" or not detailed else f" {landing}"
        axes.text(at, 2.55, f"+{commit.args['tokens']}{word}", color=colour, ha="center", fontsize=9, fontweight="bold")


def _close_up(step: Step) -> tuple[float, float] | None:
    """Return the few rounds with the most hits, early tokens breaking ties; None for a step that is short anyway."""
    rounds, commits = step.of(Kind.ROUND), step.of(Kind.COMMIT)
    if len(rounds) <= CLOSE_UP_ROUNDS + 1:
        return None
    early = [span for span in step.of(Kind.EARLY) if span.args.get("used")]

    def worth(first: int) -> tuple[int, int]:
        start, end = rounds[first].start, rounds[first + CLOSE_UP_ROUNDS - 1].end
        hits = sum(span.args["landing"] == "hit" for span in commits if start <= span.start <= end)
        return hits, sum(start <= span.start <= end for span in early)

    best = max(range(len(rounds) - CLOSE_UP_ROUNDS + 1), key=worth)
    return rounds[best].start, rounds[best + CLOSE_UP_ROUNDS - 1].end


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
    names: Iterable[Kind] = (kind for kind in COLOURS if step.of(kind))
    said = {
        Kind.PREFILL: "prefill (image and prompt)",
        Kind.PREDRAFT: "pre-draft (while a draft is verified)",
        Kind.DRAFT: "draft (the cloud idles)",
    }
    handles: list[Patch | Line2D] = [Patch(color=COLOURS[kind], label=said.get(kind, kind.value)) for kind in names]
    landed = {str(span.args["landing"]) for span in step.of(Kind.COMMIT)}
    texts = {"hit": "commit, hit: next draft ready", "miss": "commit, miss", "neither": "commit"}
    for landing in (landing for landing in LANDINGS if landing in landed):
        colour = LANDINGS[landing]
        handles.append(Line2D([], [], color=colour, marker="v", linestyle="", label=texts[landing]))
    early = step.of(Kind.EARLY)
    for used, colour, text in (
        (True, EARLY_USED, "early token of an exit"),
        (False, EARLY_LATE, "early token, too late"),
    ):
        if any(bool(span.args.get("used")) is used for span in early):
            handles.append(Line2D([], [], color=colour, marker="|", markersize=11, linestyle="", label=text))
    return handles
