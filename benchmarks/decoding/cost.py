"""What answers cost: dollars of a million requests (Early Exits, Table 1), tokens per dollar of rent (SpecEdge).

The paper bills a target pass as one output token of the target, a draft token as one of the draft; on the edge drafts
are free. No provider has to bill so: prices are the paper's, in config/prices.yaml.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from benchmarks.analytic.early_exits import COSTS, SERVER_BATCHES
from benchmarks.analytic.specedge import RENTS
from benchmarks.clocked import Recording, Timings
from benchmarks.clocked.figures import figures_of, run_mode
from benchmarks.decoding.common import (
    VIRTUAL,
    add_facts,
    add_steps,
    go2,
    number,
    recorded,
    save,
    steps_of,
)
from edge_drafter import DraftingConfig, Mode, StepResult
from evaluation.plots import add_outputs
from evaluation.tables import table
from spec_vlm_nav.graph import PROJECT

PRICES = PROJECT / "config" / "prices.yaml"
REQUEST = (100, 500)
"""Input and output tokens of a request (Early Exits, Table 1); its gamma is 4, its tau 2.5, it has a million."""
GAMMA, TAU = 4, 2.5
MODES = (Mode.CLOUD, Mode.SD, Mode.FSD, Mode.PROACTIVE, Mode.PIPELINED, Mode.FULL, Mode.SERVER_SD)
EDGES = (1, 4)
ROW_SHARE = (SERVER_BATCHES[8] / SERVER_BATCHES[1] - 1.0) / 7.0
"""Share of a target forward that each further robot in it adds: Early Exits, Table 9, 8 rows against 1 on an A100."""


@dataclass(frozen=True)
class ModelPrice:
    """Dollars per million tokens, (input, output), of a draft and a target model."""

    name: str
    provider: str
    draft: tuple[float, float]
    target: tuple[float, float]


@dataclass(frozen=True)
class Prices:
    """API prices and rents (dollars per hour), and where they come from."""

    models: tuple[ModelPrice, ...]
    api: str
    server: float
    edge: float
    rent: str

    @classmethod
    def load(cls, path: Path) -> Prices:
        """Read a file as config/prices.yaml. Raises ValueError, in one sentence, for any other."""
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
            models = tuple(
                ModelPrice(str(each["name"]), str(each["provider"]), _pair(each["draft"]), _pair(each["target"]))
                for each in data["api"]["models"]
            )
            told = [f"{data[part]['source']}, {data[part]['date']}" for part in ("api", "rent")]
            rents = [float(data["rent"][name]) for name in ("server", "edge")]
        except OSError as error:
            raise ValueError(f"--prices {path}: {error.strerror or error}") from None
        except (KeyError, TypeError, ValueError, yaml.YAMLError) as error:
            said = " ".join(str(error).split())
            raise ValueError(f"--prices {path} holds no prices as config/prices.yaml does ({said})") from None
        every = [*rents, *(price for each in models for price in (*each.draft, *each.target))]
        if not models or not all(price >= 0.0 for price in every) or rents[0] <= 0.0:
            raise ValueError(
                f"--prices {path}: name a model at least; prices are not negative, a server's rent above 0"
            )
        return cls(models, told[0], rents[0], rents[1], told[1])


def _pair(values: Any) -> tuple[float, float]:
    first, second = values
    return float(first), float(second)


def add_options(line: argparse.ArgumentParser) -> None:
    """Register what `cost` takes."""
    add_outputs(line)
    add_steps(line, 40, 8, "recorded frames")
    line.add_argument("--prices", type=Path, default=PRICES, help="YAML of prices (default: config/prices.yaml)")
    add_facts(line)


def run(options: argparse.Namespace) -> None:
    """Print the paper's table recomputed, the same with our passes, and tokens per dollar; save what was asked."""
    prices = Prices.load(options.prices)
    recording, timings = recorded(options, steps_of(options)), go2()
    shared = replace(timings, verify_row_s=ROW_SHARE * timings.verify_s)
    modes = {}
    for mode in tqdm(MODES, unit="mode", disable=None):
        modes[mode.value] = spent(recording, shared, mode)
    again, ours = paper_table(prices), our_table(prices, modes)
    print(f"dollars of a million requests of {REQUEST[0]} tokens in and {REQUEST[1]} out; prices: {prices.api}")
    print(f"\nas the paper has it, gamma {GAMMA}, tau {TAU}\n{again_text(again)}")
    print(f"\nwith our passes, embedded pair, {len(recording.steps)} frames at the Go2's times\n{ours_text(ours)}")
    print(f"\ntokens per dollar; {prices.rent}: server ${prices.server:g}, rented edge ${prices.edge:g} per hour")
    rents = rent_table(prices, modes)
    print(f"{shared}\n{VIRTUAL}\n{rent_text(rents)}\n\n{specedge_text(prices)}")
    data = {"kind": VIRTUAL, "paper": again, "requests": ours, "modes": modes, "tokens_per_dollar": rents}
    save("cost", options, {"prices": asdict(prices), **data}, shared, recording)


def dollars(price: ModelPrice, passes: float, drafted: float, out: int = REQUEST[1]) -> float:
    """Return the dollars of a million requests: `passes` target passes and `drafted` billed draft tokens a token out.

    A draft model that is billed reads the input too (Early Exits, Table 1).
    """
    target = price.target[0] * REQUEST[0] + price.target[1] * passes * out
    return target + (price.draft[0] * REQUEST[0] + price.draft[1] * drafted * out if drafted else 0.0)


def paper_table(prices: Prices) -> list[dict[str, Any]]:
    """Return the paper's Table 1 recomputed from prices, gamma and tau, beside what it prints."""
    ways = ((1.0, 0.0), (1.0 / TAU, GAMMA / TAU), (1.0 / TAU, 0.0))
    return [
        {"model": price.name, "computed": [dollars(price, *way) for way in ways], "paper": COSTS.get(price.name)}
        for price in prices.models
    ]


def our_table(prices: Prices, modes: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the dollars of each model by mode, from the passes and the billed drafts of our runs."""
    return [
        {
            "model": price.name,
            **{mode: dollars(price, each["passes_per_token"], each["billed_drafts"]) for mode, each in modes.items()},
        }
        for price in prices.models
    ]


def spent(recording: Recording, timings: Timings, mode: Mode) -> dict[str, Any]:
    """Return a mode's passes and billed draft tokens a token, and its tokens a second with one and with more robots.

    A draft beside the target is billed gamma tokens a pass; one on the edge nothing.
    """
    settings = DraftingConfig.of(mode)
    alone = run_mode(mode.value, recording, timings)
    figures = figures_of(alone, timings)
    rates = {"1": throughput(alone, 1)}
    for edges in EDGES[1:]:
        rates[str(edges)] = throughput(run_mode(mode.value, recording, timings, edges=edges), edges)
    passes = figures["passes_per_token"]
    return {
        "passes_per_token": passes,
        "billed_drafts": passes * settings.fixed_gamma if settings.self_draft else 0.0,
        "tokens_per_s": rates,
        "drafts_on_edge": settings.drafts,
    }


def throughput(results: Sequence[StepResult], edges: int) -> float:
    """Return tokens per second of all robots, until the last of them has its last answer; they share steps by turns."""
    busy = [sum(each.stats.total_s for each in results[edge::edges]) for edge in range(edges)]
    return sum(each.stats.tokens for each in results) / max(busy)


def rent_table(prices: Prices, modes: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return thousands of tokens per dollar by mode and number of robots: edges that cost no rent, and rented ones."""
    rows = []
    for mode, each in modes.items():
        for edges, rate in each["tokens_per_s"].items():
            rented = prices.edge * int(edges) if each["drafts_on_edge"] else 0.0
            rows.append(
                {
                    "mode": mode,
                    "robots": int(edges),
                    "tokens_per_s": rate,
                    "own_edge": per_dollar(rate, prices.server),
                    "rented_edge": per_dollar(rate, prices.server + rented),
                }
            )
    return rows


def per_dollar(tokens_per_s: float, rent: float) -> float:
    """Return thousands of tokens per dollar at a rent in dollars per hour."""
    return 3.6 * tokens_per_s / rent


def again_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the paper's table, recomputed and printed."""
    ways = ("cloud AR", "cloud SD", "edge-cloud SD")
    header = ("draft/target", *ways, *(f"paper: {way}" for way in ways))
    cells = [(row["model"], row["computed"], row["paper"] or (None,) * 3) for row in rows]
    return table(header, [(name, *(number(v, 0) for v in (*ours, *printed))) for name, ours, printed in cells])


def ours_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return dollars with the passes of our runs, a column for each mode."""
    modes = [key for key in rows[0] if key != "model"]
    return table(("draft/target", *modes), [(row["model"], *(number(row[mode], 0) for mode in modes)) for row in rows])


def rent_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return tokens per dollar, a row for each mode and number of robots."""
    header = ("mode", "robots", "tokens/s", "1k tokens/$, own edge", "x cloud", "1k tokens/$, rented edge", "x cloud")
    cloud = {row["robots"]: row for row in rows if row["mode"] == Mode.CLOUD.value}
    return table(
        header,
        [
            (
                row["mode"],
                str(row["robots"]),
                number(row["tokens_per_s"]),
                *(
                    cell
                    for way in ("own_edge", "rented_edge")
                    for cell in (number(row[way]), number(row[way] / cloud[row["robots"]][way]))
                ),
            )
            for row in rows
        ],
    )


def specedge_text(prices: Prices) -> str:
    """Return SpecEdge's own lines, recomputed from its throughput and these rents."""
    header = ("SpecEdge, Table 1 (14B/1.7B, multi-turn)", "tokens/s", "paper: 1k tokens/$", "from these rents")
    return table(
        header,
        [
            (
                name,
                number(rate),
                number(printed),
                number(per_dollar(rate, servers * prices.server + edges * prices.edge)),
            )
            for name, (rate, servers, edges, printed) in RENTS.items()
        ],
    )
