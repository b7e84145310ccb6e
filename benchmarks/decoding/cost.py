"""What answers cost: dollars of a million requests (Early Exits, Table 1), tokens per dollar of rent (SpecEdge).

The paper bills a target pass as one output token of the target, a draft token as one of the draft; on the edge drafts
are free. No provider has to bill so: prices are the paper's, in config/prices.yaml.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta

from benchmarks.decoding.common import VIRTUAL, arm_figures, go2, save
from benchmarks.recordings import recorded
from edge_drafter import DecodingStats, DraftingConfig, Mode
from spec_vlm_nav.graph import PROJECT
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.tables import Column, markdown
from vlm_nav_evaluation.virtual_time import Recording, Timings, VirtualTime
from vlm_nav_evaluation.virtual_time.tuning import arms_at_best, split

PRICES = PROJECT / "config" / "prices.yaml"
REQUEST = (100, 500)
"""Input and output tokens of a request (Early Exits, Table 1); its gamma is 4, its tau 2.5, it has a million."""
GAMMA, TAU = 4, 2.5
STEPS = (40, 8, "recorded frames")
MODES = (*(mode for mode in Mode if mode.needs_link and mode is not Mode.SERVER_SD), Mode.SERVER_SD)
EDGES = (1, 4)
BILLED = "server_sd, billed"
ROW_SHARE = (30.73 / 17.94 - 1.0) / 7.0
"""Share of a target forward that each further robot in it adds: Early Exits, Table 9, ms of 8 rows and of 1, A100."""
RENT_COLUMNS = (
    Column("tokens/s", "tokens_per_s"),
    Column("1k tokens/$, own edge", "own_edge"),
    Column("x cloud", "own_edge_x_cloud"),
    Column("1k tokens/$, rented edge", "rented_edge"),
    Column("x cloud", "rented_edge_x_cloud"),
    Column("edge CPU s an answer", "cpu_s"),
)
WAYS = ("cloud AR", "cloud SD", "edge-cloud SD")
PRINTED: Mapping[str, tuple[float, float, float]] = {
    "Qwen1.5-0.5B/72B": (540.0, 360.0, 270.0),
    "llama-3.1-8b/405b": (540.0, 312.0, 270.0),
    "llama3-8b/70b": (454.0, 286.0, 217.0),
    "Qwen-2-VL-7B/72B": (420.0, 390.0, 210.0),
}
"""Early Exits, Table 1: dollars of a million requests by `WAYS`."""
Dollars = Annotated[float, Meta(ge=0.0)]


class ModelPrice(msgspec.Struct, frozen=True):
    """Dollars per million tokens, (input, output), of a draft and a target model."""

    name: str
    provider: str
    draft: tuple[Dollars, Dollars]
    target: tuple[Dollars, Dollars]


class Api(msgspec.Struct, frozen=True):
    """What models cost, and where that is from."""

    source: str
    date: Any
    models: Annotated[tuple[ModelPrice, ...], Meta(min_length=1)]


class Rent(msgspec.Struct, frozen=True):
    """Dollars per hour, and where they are from."""

    source: str
    date: Any
    server: Annotated[float, Meta(gt=0.0)]
    edge: Dollars


class Prices(msgspec.Struct, frozen=True):
    """API prices and rents."""

    api: Api
    rent: Rent

    @classmethod
    def load(cls, path: Path) -> Prices:
        """Read a file as config/prices.yaml. Raises ValueError, in one sentence, for any other."""
        try:
            return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), cls)
        except OSError as error:
            raise ValueError(f"--prices {path}: {error.strerror or error}") from None
        except (ValueError, yaml.YAMLError) as error:
            why = " ".join(str(error).split())
            raise ValueError(f"--prices {path} holds no prices as config/prices.yaml does ({why})") from None


def add_options(line: argparse.ArgumentParser) -> None:
    """Register --prices."""
    line.add_argument("--prices", type=Path, default=PRICES, help="YAML of prices (default: config/prices.yaml)")


def run(options: argparse.Namespace) -> None:
    """Print the paper's table recomputed, the same with our passes, and tokens per dollar; save what was asked."""
    prices = Prices.load(options.prices)
    recording, timings = recorded(options, options.steps), go2(options.cost)
    shared = replace(timings, verify_row_s=ROW_SHARE * timings.verify_s)
    first, shown_steps = split(recording)
    modes = spent(first, shown_steps, shared, MODES)
    again, ours, rents = paper_table(prices), our_table(prices, modes), rent_table(prices, modes)
    api, rent = prices.api, prices.rent
    print(f"prices: {api.source}, {api.date}\nrents: {rent.source}, {rent.date}\n")
    print(f"dollars of a million requests of {REQUEST[0]} tokens in and {REQUEST[1]} out")
    heads = (("computed", ""), ("paper", "paper: "))
    columns = [Column(f"{head}{way}", f"{key}.{at}", ".0f") for key, head in heads for at, way in enumerate(WAYS)]
    shown = {
        row["model"]: {key: {str(at): value for at, value in enumerate(row[key] or ())} for key, _ in heads}
        for row in again
    }
    print(f"\nas the paper has it, gamma {GAMMA}, tau {TAU}\n\n{markdown('draft/target', shown, columns)}")
    print(
        f"\nwith our passes, embedded pair at the Go2's times, {len(shown_steps.steps)} frames; tuned on "
        f"{len(first.steps)} others\n"
    )
    print(request_table(prices, ours, modes))
    print(f"\ntokens per dollar; server ${rent.server:g}, rented edge ${rent.edge:g} per hour")
    rows = {f"{row['mode']}, {row['robots']}": row for row in rents}
    print(f"{shared}\n{VIRTUAL}\n\n{markdown('mode, robots', rows, RENT_COLUMNS)}")
    data = {"kind": VIRTUAL, "paper": again, "requests": ours, "modes": modes, "tokens_per_dollar": rents}
    save("cost", options, {"prices": msgspec.to_builtins(prices), **data}, shared, recording)


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
        {"model": price.name, "computed": [dollars(price, *way) for way in ways], "paper": PRINTED.get(price.name)}
        for price in prices.api.models
    ]


def our_table(prices: Prices, modes: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the dollars of each model by mode, from the passes and the billed drafts of our runs."""
    return [
        {
            "model": price.name,
            **{mode: dollars(price, each["passes_per_token"], each["billed_drafts"]) for mode, each in modes.items()},
        }
        for price in prices.api.models
    ]


def request_table(prices: Prices, ours: Sequence[Mapping[str, Any]], modes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return `our_table` as Markdown, a row for each arm: its dollars by models, and what it drafts where tuned."""
    columns = [Column(price.name, str(place), ".0f") for place, price in enumerate(prices.api.models)]
    rows = {}
    for arm, each in modes.items():
        rows[arm] = {str(place): row[arm] for place, row in enumerate(ours)}
        rows[arm]["drafting"] = f"`{each['drafting']}`" if each["drafting"] else None
    return markdown("mode", rows, (*columns, Column("drafting", "drafting", "")))


def spent(first: Recording, shown: Recording, timings: Timings, modes: Sequence[Mode]) -> dict[str, dict[str, Any]]:
    """Return passes and billed draft tokens a token, and tokens a second with one and more robots, by arm.

    Every mode as shipped and at its best for one robot, tuned on `first` and reported on `shown`. A draft beside the
    target is billed gamma tokens a pass, as a chain, whatever `server_sd` drafts where the machine is rented; one on
    the edge is billed nothing.
    """
    own, drafting = arms_at_best([mode.value for mode in modes], first, timings)
    arms = [
        Arm[Any](f"{arm.name} {edges}", arm.mode, {**arm.changes, "edges": edges}) for arm in own for edges in EDGES
    ]
    if Mode.SERVER_SD in modes:
        arms.append(Arm(BILLED, Mode.SERVER_SD.value, {"draft_tokens": 0}))
    run = VirtualTime(shown, timings).run(arms)
    figures, found = arm_figures(run, timings, "passes_per_token", "cpu_s_per_step"), {}
    for arm in own:
        settings = DraftingConfig.of(arm.mode)
        one = figures[f"{arm.name} 1"]
        passes = figures[BILLED]["passes_per_token"] if settings.self_draft else one["passes_per_token"]
        found[arm.name] = {
            "passes_per_token": passes,
            "billed_drafts": passes * settings.fixed_gamma if settings.self_draft else 0.0,
            "tokens_per_s": {str(edges): throughput(run.stats(f"{arm.name} {edges}"), edges) for edges in EDGES},
            "cpu_s_per_step": one["cpu_s_per_step"],
            "drafts_on_edge": settings.drafts,
            "drafting": drafting.get(arm.name, ""),
        }
    return found


def throughput(stats: Sequence[DecodingStats], edges: int) -> float:
    """Return tokens per second of all robots, until the last of them has its last answer; they share steps by turns."""
    busy = [sum(each.total_s for each in stats[edge::edges]) for edge in range(edges)]
    return sum(each.tokens for each in stats) / max(busy)


def rent_table(prices: Prices, modes: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return thousands of tokens per dollar by mode and number of robots: edges that cost no rent, and rented ones.

    `modes` has cloud, with which the others are compared.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for mode, each in modes.items():
        for edges, rate in each["tokens_per_s"].items():
            rented = prices.rent.edge * int(edges) if each["drafts_on_edge"] else 0.0
            own = {
                "own_edge": per_dollar(rate, prices.rent.server),
                "rented_edge": per_dollar(rate, prices.rent.server + rented),
            }
            rows[mode, edges] = {"mode": mode, "robots": int(edges), "tokens_per_s": rate, **own}
            rows[mode, edges]["cpu_s"] = each["cpu_s_per_step"]
            for way, value in own.items():
                rows[mode, edges][f"{way}_x_cloud"] = value / rows.get((Mode.CLOUD.value, edges), own)[way]
    return list(rows.values())


def per_dollar(tokens_per_s: float, rent: float) -> float:
    """Return thousands of tokens per dollar at a rent in dollars per hour."""
    return 3.6 * tokens_per_s / rent
