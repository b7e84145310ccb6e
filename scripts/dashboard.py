"""Grafana's dashboard out of one table: python scripts/dashboard.py writes deploy/grafana/dashboards/verifier.json.

`PANELS` is its home: title, unit, what it shows, and queries with the name of their lines. tests/test_operating.py
holds the file to it and every query to the series that a verifier has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).resolve().parents[1] / "deploy" / "grafana" / "dashboards" / "verifier.json"
SOURCE = {"type": "prometheus", "uid": "prometheus"}
COLUMNS, WIDTH, HEIGHT = 3, 8, 7
HERE = 'instance=~"$instance"'
"""Every query is of the verifiers that are chosen at the top of the dashboard."""


class Panel(NamedTuple):
    """One panel. `unit` is Grafana's; `queries` are PromQL and the legend of its lines."""

    title: str
    unit: str
    about: str
    queries: tuple[tuple[str, str], ...]


def _m(name: str, *labels: str) -> str:
    """Return the selector of a series of ours."""
    return f"spec_vlm_nav_{name}{{{', '.join((HERE, *labels))}}}"


def _rate(name: str, *labels: str) -> str:
    return f"rate({_m(name, *labels)}[$__rate_interval])"


def _quantile(share: float, name: str, by: str) -> str:
    return f"histogram_quantile({share}, sum by (le{', ' if by else ''}{by}) ({_rate(f'{name}_bucket')}))"


_ACCEPTED, _LEVELS = "spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_levels_total"
PANELS = (
    Panel("Ready", "short", "1: takes robots. /ready has the reason for 0.", ((_m("ready"), "{{instance}}"),)),
    Panel("Robots by state", "short", "What the sessions' robots are doing.",
          ((f"sum by (state) ({_m('robots')})", "{{state}}"), (f"sum({_m('session_places')})", "places"))),
    Panel("Committed tokens a second", "short", "By service class.",
          ((f"sum by (class) ({_rate('generation_tokens_total')})", "{{class}}"),)),
    Panel("Acceptance", "percentunit", "Accepted share of the levels of drafts, by who made them.",
          ((f"sum by (source) ({_rate(_ACCEPTED)}) / sum by (source) ({_rate(_LEVELS)})", "{{source}}"),)),
    Panel("Acceptance by robot", "percentunit", "One that falls alone has a problem of its own.",
          ((f"sum by (robot) ({_rate('robot_accepted_tokens_total')}) / sum by (robot) "
            f"({_rate('robot_draft_levels_total')})", "{{robot}}"),)),
    Panel("Accepted tokens a draft, by position", "short", "Share of drafts whose token at this depth was accepted.",
          ((f"sum by (position) ({_rate('spec_decode_num_accepted_tokens_per_pos_total')}) / ignoring (position) "
            f"group_left sum({_rate('spec_decode_num_drafts_total')})", "{{position}}"),)),
    Panel("Time per token, 95 %", "s", "By service class; promised are 0.5, 0.25, 0.167 and 0.125 s.",
          ((_quantile(0.95, "inter_token_latency_seconds", "class"), "{{class}}"),)),
    Panel("Time to the first token, 95 %", "s", "From BeginStep to the first commit, by service class.",
          ((_quantile(0.95, "time_to_first_token_seconds", "class"), "{{class}}"),)),
    Panel("Violations", "percentunit", "Share of commits that were slower than their class promises.",
          ((f"sum by (class) ({_rate('deadline_violations_total')}) / sum by (class) ({_rate('class_commits_total')})",
            "{{class}}"),)),
    Panel("Answers: where their time goes", "s", "Medians: until memory is there, prefill, decoding, all of it.",
          tuple((_quantile(0.5, f"{name}_seconds", ""), label) for name, label in (
              ("request_queue_time", "queue"), ("request_prefill_time", "prefill"), ("request_decode_time", "decode"),
              ("e2e_request_latency", "answer")))),
    Panel("Utilisation", "percentunit", "Share of the time that the models work, by work.",
          ((f"sum by (work) ({_rate('engine_busy_seconds_total')})", "{{work}}"),)),
    Panel("Forwards", "s", "What one takes, and is predicted to take where all robots decode.",
          ((_quantile(0.5, "pass_seconds", ""), "median"), (_quantile(0.95, "pass_seconds", ""), "95 %"),
           (f"max({_m('predicted_pass_seconds')})", "predicted"))),
    Panel("Memory of keys and values", "percentunit", "Share that is held, and of prompts' tokens those found there.",
          ((f"max by (instance) ({_m('kv_cache_usage_perc')})", "held {{instance}}"),
           (f"sum({_rate('prefix_cache_hits_total')}) / sum({_rate('prefix_cache_queries_total')})", "shared"))),
    Panel("The ledger's choices", "short", "Passes a second by what they did.",
          ((f"sum by (choice) ({_rate('ledger_choices_total')})", "{{choice}}"),
           (f"sum({_rate('ledger_wait_seconds_total')})", "seconds waited"))),
    Panel("Credit", "short", "Lead over decoding alone, in tokens: mean and smallest of the running steps.",
          ((f"avg({_m('ledger_credit_tokens_mean')})", "mean"),
           (f"min({_m('ledger_credit_tokens_min')})", "smallest"))),
    Panel("Early tokens that the last layer confirms", "percentunit", "By exit layer.",
          ((f"sum by (layer) ({_rate('early_token_hits_total')}) / sum by (layer) ({_rate('early_tokens_total')})",
            "layer {{layer}}"),)),
    Panel("Links: round trip", "s", "As the robots measure it.",
          ((f"max by (robot) ({_m('robot_round_trip_seconds')})", "{{robot}}"),)),
    Panel("Links: lost, resumed, turned away", "short", "A second.",
          ((f"sum({_rate('sessions_lost_total')})", "lost"), (f"sum({_rate('sessions_resumed_total')})", "resumed"),
           (f"sum({_rate('requests_busy_total')})", "turned away"), (f"sum({_rate('faults_total')})", "refused"))),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana reads it."""
    return {
        "uid": "spec-vlm-nav",
        "title": "Verifier",
        "tags": ["spec-vlm-nav"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{
            "name": "instance", "label": "verifier", "type": "query", "datasource": SOURCE, "multi": True,
            "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "refresh": 2,
            "query": {"query": "label_values(spec_vlm_nav_ready, instance)", "refId": "instance"},
        }]},
        "panels": [_panel(place, panel) for place, panel in enumerate(PANELS)],
    }  # fmt: skip


def _panel(place: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(place, COLUMNS)
    return {
        "id": place + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": None if panel.title == "Credit" else 0},
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }


def text() -> str:
    """Return the file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
