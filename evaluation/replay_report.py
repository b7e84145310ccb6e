"""The report of a replay: steps in; one JSON-able dictionary, text, and a page with pictures out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from edge_drafter import Mode
from evaluation.agreement import Pair, agreement, agreement_table, percent
from evaluation.figures import percentiles, report, stale, summary, table8
from evaluation.page import Section, write_page
from evaluation.results import TARGET_ALONE, Arm, Step
from evaluation.tables import table
from speculation.prompts import to_navigation_action as to_action

REPORT = "report.json"
SHOWN_LEFT_OUT = 20
OVERRUN = 1.15
"""A declared time that is exceeded by more than this factor was not kept."""
TABLE_8: tuple[tuple[str, str, str, float], ...] = (
    ("gamma_draft_s", "drafting latency gamma T_p, ms", "ms", 0.288),
    ("verify_s", "verification latency T_q, ms", "ms", 0.620),
    ("c", "latency ratio c = T_p / T_q", "2", 0.11),
    ("one_way_s", "communication latency T_c, ms", "ms", 0.120),
    ("tau", "average tokens tau", "2", 2.92),
    ("miss_rate", "cache miss rate", "%", 0.5563),
    ("mean_exit", "mean exit, layer from 0", "1", 8.0),
    ("ar_to_sd", "speed-up AR -> SD", "x", 0.90),
    ("sd_to_fsd", "speed-up SD -> FSD", "x", 1.34),
    ("ar_to_fsd", "speed-up AR -> FSD", "x", 1.21),
)
"""Rows of Early Exits, Table 8 (the last one from its text): figure, words, unit, the paper's value on Go2 and A100."""


def build(
    steps: Sequence[Step], settings: Mapping[str, Any], left_out: Sequence[Mapping[str, Any]], machine: str
) -> dict[str, Any]:
    """Return all figures of a run. Raises ValueError where nothing was evaluated."""
    arms = sorted({step.arm for step in steps if step.arm.mode != TARGET_ALONE}, key=_order)
    if not arms:
        why = f": {left_out[0]['reason']}" if left_out else ""
        raise ValueError(f"no frame was evaluated{why}")
    by_arm = {arm: [step for step in steps if step.arm == arm] for arm in arms}
    reference = _reference(steps, arms)
    entries: dict[str, Any] = {}
    for arm, own in by_arm.items():
        ages = _ages(own)
        entries[arm.label] = {
            "mode": arm.mode,
            "rtt_ms": arm.rtt_ms,
            "figures": summary([step.stats for step in own]),
            "times_s": [round(step.stats.total_s, 6) for step in own],
            "stale_s": percentiles(ages),
            "looked_at": len(ages) / len(own),
            "oracle": _with_oracle(own),
            "target": _with_reference(own, reference) if reference else None,
        }
    return {
        "settings": dict(settings),
        "machine": machine,
        "frames": len({step.frame for step in steps}),
        "reference": reference[0].arm.label if reference else None,
        "tokens": _digest(steps),
        "table8": {
            f"{rtt:g}": _table8(by_arm, rtt, settings.get("gamma")) for rtt in sorted({arm.rtt_ms for arm in arms})
        },
        "arms": entries,
        "target_alone_oracle": _with_oracle([step for step in steps if step.arm.mode == TARGET_ALONE]),
        "left_out": list(left_out),
        "answers": _answers(steps),
    }


def text(data: Mapping[str, Any]) -> str:
    """Return the report for the screen."""
    return "\n\n".join(f"{title}\n{body}" for title, body in _sections(data))


def write(folder: Path, data: Mapping[str, Any]) -> Path:
    """Write report.json, the PNGs and report.html into `folder`; return the page."""
    from evaluation.replay_plots import draw_agreement, draw_latency, draw_stages

    (folder / REPORT).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    pictures = {
        "Time to action": ("latency.png", draw_latency(data), "box plot of the time to action by mode"),
        "Where the time goes": ("stages.png", draw_stages(data), "stacked bars of the stages by mode"),
        "Agreement": ("agreement.png", draw_agreement(data), "confusion of action kinds"),
    }
    parts = [Section(title, text=body) for title, body in _sections(data)]
    for title, (file, figure, description) in pictures.items():
        if figure is None:
            continue
        figure.savefig(folder / file, dpi=100)
        parts.append(Section(title, plots=[(file, description)]))
    if data["left_out"]:
        parts.append(Section("Left out", lines=left_out_lines(data)))
    title = f"Replay of {', '.join(data['settings']['bags'])}"
    return write_page(folder / "report.html", title, parts, headlines(data))


def headlines(data: Mapping[str, Any]) -> list[str]:
    """Return what was measured, with what, on what."""
    settings = data["settings"]
    declared = (
        f"declared delays: {settings['declared']['scale']}" if settings["profile"] != "raw" else "no declared delays"
    )
    lines = [
        f"{data['frames']} frames of {len(settings['bags'])} bag(s), profile {settings['profile']} ({declared}), "
        f"{settings['dtype']}, gamma {settings['gamma']}",
        *([f"link {settings['link']} ({settings['declared_link']['scale']})"] if settings.get("link") else []),
        f"target {settings['target']}, draft {settings['draft']}, tokens {data['tokens']}",
        data["machine"],
    ]
    lines += overruns(data)
    interrupted = sum(arm["figures"]["interruptions"] for arm in data["arms"].values())
    if interrupted:
        lines.append(f"the link was lost {interrupted:.0f} times; the steps concerned took the longer for it")
    if data["left_out"]:
        lines.append(f"left out: {len(data['left_out'])}; see the end")
    return lines


def overruns(data: Mapping[str, Any]) -> list[str]:
    """Return a sentence for every declared time that this machine could not keep: then times are not the profile's."""
    declared = data["settings"]["declared"]
    sentences = []
    for rtt, rows in data["table8"].items():
        # What queues and losses of an emulated link add is no overrun.
        one_way = 0.0 if data["settings"].get("link") else declared["one_way_s"] + float(rtt) / 2e3
        limits = {**declared, "one_way_s": one_way}
        for name, words in (
            ("draft_s", "a draft forward"),
            ("verify_s", "a target forward"),
            ("one_way_s", "a message"),
        ):
            took, limit = rows[name], limits[name]
            if limit > 0.0 and took is not None and took > OVERRUN * limit:
                sentences.append(
                    f"NOT the profile's times: {words} took {1e3 * took:.0f} ms where {1e3 * limit:.0f} ms are "
                    "declared (this machine is too slow or too busy for the profile)"
                )
    return sentences


def left_out_lines(data: Mapping[str, Any]) -> list[str]:
    """Return one line per reason, with the frames that it concerns."""
    frames: dict[tuple[str, str], list[int]] = {}
    for entry in data["left_out"]:
        found = frames.setdefault((entry["bag"], entry["reason"]), [])
        if entry["frame"] is not None:
            found.append(entry["frame"])
    lines = [f"{bag}: {reason}{_frames(numbers)}" for (bag, reason), numbers in frames.items()]
    more = len(lines) - SHOWN_LEFT_OUT
    return lines[:SHOWN_LEFT_OUT] + ([f"and {more} more reasons, all in {REPORT}"] if more > 0 else [])


def _sections(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    arms: Mapping[str, Any] = data["arms"]
    sections = [("Table 8 of the paper, for this run", _table8_text(data["table8"]))]
    sections.append(("Time to action, ms; staleness is a frame's age when its action is known", _time_table(arms)))
    for rtt in data["table8"]:
        own = {label: arm["figures"] for label, arm in arms.items() if f"{arm['rtt_ms']:g}" == rtt}
        base = next((label for label in own if arms[label]["mode"] == Mode.CLOUD.value), "")
        name = f"Decoding, {rtt} ms declared on top of the profile's round trip" if rtt != "0" else "Decoding"
        sections.append((name, report(own, base)))
    target = {label: arm["target"] for label, arm in arms.items() if arm["target"]}
    if target:
        lines = agreement_table(target)
        same = ", ".join(f"{label} {percent(row['identical_tokens'])}" for label, row in target.items())
        sections.append((f"Agreement with {_name(data['reference'])}", f"{lines}\nidentical tokens: {same}"))
    oracle = {label: arm["oracle"] for label, arm in arms.items() if arm["oracle"]}
    if data["target_alone_oracle"]:
        oracle["target alone"] = data["target_alone_oracle"]
    if oracle:
        turns: dict[str, list[str]] = {}
        for label, row in oracle.items():
            counts = ", ".join(f"{name} {count}" for name, count in row["left_right"].items())
            turns.setdefault(counts, []).append(label)
        lines = "\n".join(f"{counts}   ({', '.join(labels)})" for counts, labels in turns.items())
        sections.append(("Agreement with the oracle", f"{agreement_table(oracle)}\n{lines}"))
    return sections


def _table8_text(rows: Mapping[str, Mapping[str, float | None]]) -> str:
    header = ("", *(f"this run +{rtt} ms" if rtt != "0" else "this run" for rtt in rows), "the paper")
    return table(
        header,
        [
            (words, *(_number(columns[name], unit) for columns in rows.values()), _number(paper, unit))
            for name, words, unit, paper in TABLE_8
        ],
    )


def _time_table(arms: Mapping[str, Any]) -> str:
    header = ("", "p50", "p90", "p99", "mean", "TTFT", "TPOT", "stale p50", "p90", "p99", "frames looked at")
    rows = []
    for label, arm in arms.items():
        figures = arm["figures"]
        rows.append(
            (
                label,
                *(_number(figures["total_percentiles_s"][name], "ms") for name in ("p50", "p90", "p99", "mean")),
                *(_number((figures[name] or {}).get("median"), "ms1") for name in ("first_commit_s", "tpot_s")),
                *(_number(arm["stale_s"][name], "ms") for name in ("p50", "p90", "p99")),
                percent(arm["looked_at"]),
            )
        )
    return table(header, rows)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return {
        "ms": f"{1e3 * value:.0f}",
        "ms1": f"{1e3 * value:.1f}",
        "x": f"{value:.2f}x",
        "%": f"{value:.1%}",
        "1": f"{value:.1f}",
        "2": f"{value:.2f}",
    }[unit]


def _table8(by_arm: Mapping[Arm, Sequence[Step]], rtt_ms: float, gamma: Any) -> dict[str, float | None]:
    own = {arm.mode: steps for arm, steps in by_arm.items() if arm.rtt_ms == rtt_ms}
    trips = [step.rtt_s for steps in own.values() for step in steps if step.rtt_s >= 0.0]
    figures = {mode: summary([step.stats for step in steps]) for mode, steps in own.items()}
    one_way = median(trips) / 2.0 if trips else 0.0
    return table8(figures, gamma if isinstance(gamma, int) else None, one_way)


def _ages(steps: Sequence[Step]) -> list[float]:
    ages: list[float] = []
    for bag in sorted({step.frame.bag for step in steps}):
        own = [step for step in steps if step.frame.bag == bag]
        start = own[0].stamp_ns
        ages += stale([(step.stamp_ns - start) * 1e-9 for step in own], [step.stats.total_s for step in own])
    return ages


def _with_oracle(steps: Sequence[Step]) -> dict[str, Any] | None:
    pairs = [(to_action(step.action), truth) for step in steps if (truth := to_action(step.oracle)) is not None]
    return agreement(pairs) if pairs else None


def _reference(steps: Sequence[Step], arms: Sequence[Arm]) -> list[Step]:
    """Return the steps of the target alone, else of mode `cloud`, whose tokens are the target's by construction."""
    alone = [step for step in steps if step.arm.mode == TARGET_ALONE]
    cloud = next((arm for arm in arms if arm.mode == Mode.CLOUD.value), None)
    return alone or [step for step in steps if step.arm == cloud]


def _with_reference(steps: Sequence[Step], reference: Sequence[Step]) -> dict[str, Any] | None:
    truths = {step.frame: step for step in reference}
    if steps[0].arm == reference[0].arm:
        return None
    both = [(step, truths[step.frame]) for step in steps if step.frame in truths]
    pairs: list[Pair] = [
        (to_action(step.action), action) for step, truth in both if (action := to_action(truth.action)) is not None
    ]
    same = sum(step.tokens == truth.tokens for step, truth in both)
    return agreement(pairs) | {"identical_tokens": same / len(both) if both else None, "compared": len(both)}


def _answers(steps: Iterable[Step]) -> dict[str, dict[str, list[str]]]:
    """Return per arm and frame ('bag:index') the action and a digest of the answer's tokens."""
    answers: dict[str, dict[str, list[str]]] = {}
    for step in steps:
        name = f"{step.frame.bag}:{step.frame.index}"
        answers.setdefault(step.arm.label, {})[name] = [step.action or "unreadable", _digest([step])]
    return answers


def _digest(steps: Iterable[Step]) -> str:
    """Return 12 hex digits that name all tokens of all steps: equal digests, equal answers."""
    digest = hashlib.sha256()
    for step in steps:
        digest.update(f"{step.frame.bag}:{step.frame.index}:{step.arm.label}:{step.tokens}\n".encode())
    return digest.hexdigest()[:12]


def _frames(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    shown = ", ".join(str(number) for number in numbers[:8])
    return f" ({len(numbers)} frame{'s' if len(numbers) > 1 else ''}: {shown}{', ...' if len(numbers) > 8 else ''})"


def _name(label: str) -> str:
    return "the target alone" if label == TARGET_ALONE else f"mode {label}, whose tokens are the target's"


def _order(arm: Arm) -> tuple[float, int]:
    return arm.rtt_ms, [mode.value for mode in Mode].index(arm.mode)
