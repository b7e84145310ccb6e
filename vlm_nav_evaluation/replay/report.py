"""The report of a replay: a run in; one JSON-able dictionary, text, and a page with a plot out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from matplotlib.figure import Figure

from edge_drafter import Mode
from edge_drafter.settings import read_changes
from speculation.language.prompts import STOP, ActionKind, NavigationAction
from speculation.language.prompts import to_navigation_action as to_action
from vlm_nav_evaluation.experiment.reference_answers import TARGET
from vlm_nav_evaluation.experiment.run import Answer, Run
from vlm_nav_evaluation.figures import report, table8
from vlm_nav_evaluation.html_page import Section, write_page
from vlm_nav_evaluation.plots import DPI, MODE_COLOURS, bar_plot
from vlm_nav_evaluation.tables import MS, Column, figures_table, table

REPORT, LATENCY = "report.json", "latency.png"
SHOWN_LEFT_OUT = 20
OVERRUN = 1.15
"""A declared time that is exceeded by more than this factor was not kept."""
TABLE_8 = (
    Column("drafting latency of a token T_p, ms", "draft_s", ".0f", MS),
    Column("drafting latency gamma T_p, ms", "gamma_draft_s", ".0f", MS),
    Column("verification latency T_q, ms", "verify_s", ".0f", MS),
    Column("latency ratio c = T_p / T_q", "c"),
    Column("communication latency T_c, ms", "one_way_s", ".0f", MS),
    Column("average tokens tau", "tau"),
    Column("cache miss rate", "miss_rate", ".1%"),
    Column("mean exit, layer from 0", "mean_exit", ".1f"),
    Column("speed-up AR -> SD", "ar_to_sd", ".2fx"),
    Column("speed-up SD -> FSD", "sd_to_fsd", ".2fx"),
    Column("speed-up AR -> FSD", "ar_to_fsd", ".2fx"),
)
"""Rows of Early Exits, Table 8 (T_p alone is of its c, the last one of its text)."""
TIMES = (
    *(Column(name, f"figures.total_percentiles_s.{name}", ".0f", MS) for name in ("p50", "p90", "p99", "mean")),
    Column("TTFT", "figures.first_commit_s.median", ".1f", MS),
    Column("TPOT", "figures.tpot_s.median", ".1f", MS),
)
STAGES = tuple(
    Column(title, f"figures.stages_s.{name}", ".1f", MS)
    for name, title in {
        "prefill_s": "prefill",
        "draft_s": "drafts, no check running",
        "predraft_s": "drafts during a check",
        "wait_s": "waits",
        "server_prefill_s": "verifier: prefill",
        "server_compute_s": "forwards",
        "server_queue_s": "queue",
    }.items()
)


AGREEMENT = (
    Column("frames", "frames", "d", 1),
    Column("exact", "exact", ".1%"),
    Column("kind", "kind", ".1%"),
    Column("left/right swapped", "left_right_swapped", ".1%"),
    Column("stop precision", "stop_precision", ".1%"),
    Column("stop recall", "stop_recall", ".1%"),
    Column("unreadable", "unreadable", "d", 1),
)
Pair: TypeAlias = tuple[NavigationAction | None, NavigationAction]
"""What was answered (None: no action could be read) and what should have been."""
TURNS = (ActionKind.TURN_LEFT, ActionKind.TURN_RIGHT)


class ReplayArm(NamedTuple):
    """A mode, and a round trip that is declared on top of the profile's."""

    mode: str
    rtt_ms: float = 0.0

    @property
    def label(self) -> str:
        """Return the name in tables, e.g. 'fsd +40 ms'."""
        return f"{self.mode} +{self.rtt_ms:g} ms" if self.rtt_ms else self.mode


def build(
    run: Run,
    arms: Sequence[ReplayArm],
    settings: Mapping[str, Any],
    left_out: Sequence[Mapping[str, Any]],
    machine: str,
) -> dict[str, Any]:
    """Return all figures of a run. Raises ValueError where nothing was evaluated.

    The reference is the target alone, else mode `cloud`, whose tokens are the target's by construction.
    """
    if not run.names:
        why = f": {left_out[0]['reason']}" if left_out else ""
        raise ValueError(f"no frame was evaluated{why}")
    arms = sorted(arms, key=lambda arm: (arm.rtt_ms, [mode.value for mode in Mode].index(arm.mode)))
    cloud = next((arm.label for arm in arms if arm.mode == Mode.CLOUD.value), None)
    reference = TARGET if TARGET in run.answers else cloud
    figures, entries = run.figures(), {}
    for arm in arms:
        own = run.answers[arm.label]
        compared = reference is not None and reference != arm.label
        entries[arm.label] = {
            "mode": arm.mode,
            "rtt_ms": arm.rtt_ms,
            "figures": figures[arm.label],
            "times_s": [round(seconds, 6) for seconds in run.seconds(arm.label)],
            "one_way_s": _one_way_s(own),
            "oracle": _with_oracle(own),
            "given": _with_given(run.names, own, arm.mode),
            "target": _with_reference(own, run.answers[reference]) if reference is not None and compared else None,
        }
    return {
        "settings": dict(settings),
        "machine": machine,
        "frames": len(run.names),
        "reference": reference,
        "tokens": _digest(
            (name, arm, run.answers[arm][at]) for at, name in enumerate(run.names) for arm in run.answers
        ),
        "table8": _tables_8(run, arms, _gamma(settings)),
        "arms": entries,
        "target_alone_oracle": _with_oracle(run.answers.get(TARGET, ())),
        "left_out": list(left_out),
        "answers": {
            arm.label: {
                name: [answer.more["action"] or "unreadable", _digest([(name, arm.label, answer)])]
                for name, answer in zip(run.names, run.answers[arm.label], strict=True)
            }
            for arm in arms
        },
    }


def _tables_8(run: Run, arms: Sequence[ReplayArm], gamma: int | None) -> dict[str, dict[str, Any]]:
    """Return `table8` for each round trip that is declared on top of the profile's, in ms."""
    figures, found = run.figures(), {}
    for rtt_ms in sorted({arm.rtt_ms for arm in arms}):
        own = [arm for arm in arms if arm.rtt_ms == rtt_ms]
        one_way_s = _one_way_s([answer for arm in own for answer in run.answers[arm.label]])
        modes = {arm.mode: figures[arm.label] for arm in own}
        found[f"{rtt_ms:g}"] = table8(modes, gamma, one_way_s)
    return found


def _gamma(settings: Mapping[str, Any]) -> int | None:
    """Return the gamma of drafts, which `drafting` may change; None where the edge chooses it."""
    gamma = read_changes(settings["drafting"]).get("gamma", settings["gamma"])
    return gamma if isinstance(gamma, int) else None


def _one_way_s(answers: Sequence[Answer]) -> float | None:
    """Return half the median round trip; None where none was measured."""
    trips = [trip for each in answers if (trip := each.more["rtt_s"]) >= 0.0]
    return median(trips) / 2.0 if trips else None


def text(data: Mapping[str, Any]) -> str:
    """Return the report for the screen."""
    return "\n\n".join(f"{title}\n{body}" for title, body in _sections(data))


def write(folder: Path, data: Mapping[str, Any]) -> Path:
    """Write report.json, latency.png and report.html into `folder`; return the page."""
    (folder / REPORT).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    plot_latency(data).savefig(folder / LATENCY, dpi=DPI)
    parts = [Section(title, text=body) for title, body in _sections(data)]
    parts.append(Section("Time to action", plots=[(LATENCY, "box plot of the time to action by mode")]))
    if data["left_out"]:
        parts.append(Section("Left out", lines=left_out_lines(data)))
    title = f"Replay of {', '.join(data['settings']['bags'])}"
    return write_page(folder / "report.html", title, parts, headlines(data))


def plot_latency(data: Mapping[str, Any]) -> Figure:
    """Return the time to action of every arm: box p25 to p75, whiskers p5 to p95, steps as dots; p50 and p99."""
    arms = data["arms"]
    title = f"Time to action, {data['frames']} frames, profile {data['settings']['profile']}"
    words = "time to action, ms (box: p25 to p75, whiskers: p5 to p95, bar: p99, dots: single frames)"
    figure, axes = bar_plot(1.4 + 0.75 * len(arms), list(arms), title, words)
    for row, arm in enumerate(arms.values()):
        values, colour = 1e3 * np.asarray(arm["times_s"]), MODE_COLOURS[arm["mode"]]
        axes.boxplot(
            values, positions=[row], orientation="horizontal", widths=0.5, whis=(5, 95), showfliers=False,
            patch_artist=True, manage_ticks=False, boxprops={"facecolor": colour, "alpha": 0.55},
            medianprops={"color": "black"},
        )  # fmt: skip
        spots = row + 0.36 * np.random.default_rng(0).uniform(-1, 1, len(values))
        axes.plot(values, spots, ".", color=colour, markersize=3, alpha=0.6)
        found = arm["figures"]["total_percentiles_s"]
        axes.plot([1e3 * found["p99"]], [row], "k|", markersize=16, markeredgewidth=2)
        axes.text(1.0, row, f" p50 {1e3 * found['p50']:.0f}\n p99 {1e3 * found['p99']:.0f}", va="center", fontsize=9,
                  transform=axes.get_yaxis_transform())  # fmt: skip
    axes.set_xlim(left=0)
    return figure


def headlines(data: Mapping[str, Any]) -> list[str]:
    """Return what was measured, with what, on what."""
    settings = data["settings"]
    raw = settings["profile"] == "raw"
    declared = "no declared delays" if raw else f"declared delays: {settings['declared']['scale']}"
    lines = [
        f"{data['frames']} frames of {len(settings['bags'])} bag(s), profile {settings['profile']} ({declared}), "
        f"{settings['dtype']}, gamma {settings['gamma']}",
        *([f"link {settings['link']} ({settings['declared_link']['scale']})"] if settings.get("link") else []),
        f"target {settings['target']}, draft {settings['draft']}, tokens {data['tokens']}",
        data["machine"],
        *overruns(data),
    ]
    if interrupted := sum(arm["figures"]["interruptions"] for arm in data["arms"].values()):
        lines.append(f"the link was lost {interrupted:.0f} times; the steps concerned took the longer for it")
    for label, arm in data["arms"].items():
        if given := arm["given"]:
            lines.append(_same_as_given(label, given))
    if data["left_out"]:
        lines.append(f"left out: {len(data['left_out'])}; see the end")
    return lines


def overruns(data: Mapping[str, Any]) -> list[str]:
    """Return a sentence for every declared time that this machine could not keep: then times are not the profile's."""
    declared, arms = data["settings"]["declared"], data["arms"].values()
    kept = {
        "a draft forward": [(arm["figures"]["draft_forward_s"], declared["draft_s"]) for arm in arms],
        "a target forward": [(arm["figures"]["verify_s"], declared["verify_s"]) for arm in arms],
    }
    if not data["settings"].get("link"):  # what queues and losses of an emulated link add is no overrun
        kept["a message"] = [(arm["one_way_s"], declared["one_way_s"] + arm["rtt_ms"] / 2e3) for arm in arms]
    return not_kept(kept)


def not_kept(kept: Mapping[str, Sequence[tuple[float | None, float]]]) -> list[str]:
    """Return a sentence for all that took clearly longer than declared: by its words (seconds it took, declared)."""
    sentences = []
    for words, measured in kept.items():
        late = [(took, limit) for took, limit in measured if took is not None and took > OVERRUN * limit > 0.0]
        if late:
            took, allowed = max(late)
            sentences.append(
                f"NOT the declared times: {words} took {1e3 * took:.0f} ms where {1e3 * allowed:.0f} ms are declared "
                "(this machine is too slow or too busy for them)"
            )
    return sentences


def left_out_lines(data: Mapping[str, Any]) -> list[str]:
    """Return one line per reason, with the frames that it concerns."""
    frames: dict[tuple[str, str], list[int]] = {}
    for entry in data["left_out"]:
        found = frames.setdefault((entry["bag"], entry["reason"]), [])
        if entry["frame"] is not None:
            found.append(entry["frame"])
    lines = []
    for (bag, reason), numbers in frames.items():
        shown = ", ".join([*map(str, numbers[:8]), *(["..."] if len(numbers) > 8 else [])])
        count = f"{len(numbers)} frame{'s' if len(numbers) > 1 else ''}"
        lines.append(f"{bag}: {reason}" + (f" ({count}: {shown})" if numbers else ""))
    more = len(lines) - SHOWN_LEFT_OUT
    return lines[:SHOWN_LEFT_OUT] + ([f"and {more} more reasons, all in {REPORT}"] if more > 0 else [])


def _sections(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the tables under their titles."""
    arms, tables = data["arms"], data["table8"]
    header = ("", *(f"this run +{rtt} ms" if rtt != "0" else "this run" for rtt in tables))
    rows = [(row.title, *(row.cell(figures) for figures in tables.values())) for row in TABLE_8]
    sections = [
        ("Early Exits, Table 8, for this run", table(header, rows)),
        ("Time to action, ms", figures_table("", arms, TIMES)),
        ("Where the time goes, ms a step; the verifier works beside the edge", figures_table("", arms, STAGES)),
    ]
    for rtt in tables:
        own = {label: arm["figures"] for label, arm in arms.items() if f"{arm['rtt_ms']:g}" == rtt}
        base = next((label for label in own if arms[label]["mode"] == Mode.CLOUD.value), "")
        name = f"Decoding, {rtt} ms declared on top of the profile's round trip" if rtt != "0" else "Decoding"
        sections.append((name, report(own, base)))
    if target := {label: arm["target"] for label, arm in arms.items() if arm["target"]}:
        same = ", ".join(f"{label} {row['identical_tokens']:.1%}" for label, row in target.items())
        name = f"mode {data['reference']}, whose tokens are the target's"
        name = "the target alone" if data["reference"] == TARGET else name
        sections.append((f"Agreement with {name}", f"{figures_table('', target, AGREEMENT)}\nidentical tokens: {same}"))
    labelled = {**{label: arm["oracle"] for label, arm in arms.items()}, "target alone": data["target_alone_oracle"]}
    if oracle := {label: row for label, row in labelled.items() if row}:
        sections.append(("Agreement with the oracle", figures_table("", oracle, AGREEMENT)))
    return sections


def _with(answers: Sequence[Answer], truths: Iterable[str]) -> dict[str, Any]:
    """Return the agreement of answers with actions, in words; what is no action is left out."""
    read = [(to_action(answer.more["action"]), to_action(truth)) for answer, truth in zip(answers, truths, strict=True)]
    return agreement([(action, truth) for action, truth in read if truth is not None])


def _with_oracle(answers: Sequence[Answer]) -> dict[str, Any] | None:
    found = _with(answers, (answer.more["oracle"] for answer in answers))
    return found if found["frames"] else None


def _with_given(names: Sequence[str], answers: Sequence[Answer], mode: str) -> dict[str, Any] | None:
    """Return how many answers are those that were given while the bags were recorded; None where there are none.

    Those of the draft model alone are compared with its own.
    """
    alone, compared, different = Mode.EDGE.value, 0, list[str]()
    for name, answer in zip(names, answers, strict=True):
        if not (given := answer.more.get("given")) or (given[0] == alone) != (mode == alone):
            continue
        compared += 1
        if given[1] != answer.more["text"]:
            different.append(name)
    return {"compared": compared, "different": different} if compared else None


def _same_as_given(label: str, given: Mapping[str, Any]) -> str:
    different, count = given["different"], given["compared"]
    same = f"{label}: {count - len(different)} of {count} answers are those that were given while recording"
    if not different:
        return same
    return (
        f"{same}. NOT at {', '.join(different[:8])}{', ...' if len(different) > 8 else ''}: is it the same target "
        "model, dtype, --answers and --frames? In float32 a near tie may fall either way"
    )


def _with_reference(answers: Sequence[Answer], reference: Sequence[Answer]) -> dict[str, Any]:
    same = sum(answer.tokens == truth.tokens for answer, truth in zip(answers, reference, strict=True))
    found = _with(answers, (truth.more["action"] for truth in reference))
    return found | {"identical_tokens": same / len(answers), "compared": len(answers)}


def _digest(answers: Iterable[tuple[str, str, Answer]]) -> str:
    """Return 12 hex digits that name all tokens of all answers: equal digests, equal answers."""
    digest = hashlib.sha256()
    for frame, arm, answer in answers:
        digest.update(f"{frame}:{arm}:{tuple(answer.tokens)}\n".encode())
    return digest.hexdigest()[:12]


def agreement(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return how often the answers equal the reference: as a whole, in kind, left against right, and about stopping.

    An unreadable answer agrees with none. left_right_swapped: of the frames on which both turn. Rates are None where
    there is nothing to count.
    """
    read = [(answer, truth) for answer, truth in pairs if answer is not None]
    turned = [answer.kind is truth.kind for answer, truth in read if answer.kind in TURNS and truth.kind in TURNS]
    stopped = [truth == STOP for answer, truth in read if answer == STOP]
    return {
        "frames": len(pairs),
        "exact": _rate(sum(answer == truth for answer, truth in read), len(pairs)),
        "kind": _rate(sum(answer.kind is truth.kind for answer, truth in read), len(pairs)),
        "unreadable": len(pairs) - len(read),
        "left_right_swapped": _rate(turned.count(False), len(turned)),
        "stop_precision": _rate(sum(stopped), len(stopped)),
        "stop_recall": _rate(sum(stopped), sum(truth == STOP for _, truth in pairs)),
    }


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None
