"""Of all exits that were trained and measured, keep the few that save most time.

Train exits after all candidate layers at once (command exits), measure them (command measure-exits), then select.
A right exit gives the edge a head start of as long as the final verdict still takes, gamma T_p at most; a later exit
adds something only where no earlier one was right; every exit's own time delays the verdict. The formula stands in
adapters_training/exit_choice/exact_search.py. The search is exact, on the candidates' verdicts in every verification.

Times are those of the machine on which the exits were measured (--profile raw), or of a declared device profile of
config/profiles.json. For declared times layers take equal shares of a verification, and each exit keeps the share that
it had where it was measured, unless --exit-cost gives another.

reads: a folder that measure-exits has filled. Needs no model.
writes: a new exits folder with the chosen adapters, measured.json with their figures and selection.json (the best set
  of every size).

examples:
  python -m adapters_training select-exits --exits out/exits --out out/chosen-exits
  python -m adapters_training select-exits --exits out/exits --out out/chosen-exits --profile go2_a100 --budget 0.05

time: seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from adapters_training.exit_choice.exact_search import Candidates, Choice, select
from adapters_training.exit_choice.report import Measured
from adapters_training.exit_choice.verdicts import Verdicts
from adapters_training.settings import Command
from speculation.exits import ExitFiles, Head
from speculation.profiles import RAW, DeviceProfile, load_profile

RESULT_FILE = "selection.json"


class SelectConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the command that chooses exits to keep."""

    exits: Annotated[Path, Meta(description="folder of measured candidates")]
    out: Annotated[Path, Meta(description="folder for the chosen exits and a table")]
    profile: Annotated[str, Meta(description="device profile to choose for; raw: as measured")] = "raw"
    budget: Annotated[float, Meta(gt=0, description="what all exits may add, as a share of a verification")] = 0.1
    exit_cost: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="what one exit adds, as a share of a verification; none: as measured"),
    ] = None
    least: Annotated[int, Meta(ge=1, description="exits at least")] = 3
    most: Annotated[int, Meta(ge=1, description="exits at most")] = 6


@dataclass(frozen=True)
class Selection:
    """Holds the best set of every size and the one that was chosen among them, with one head, for these times."""

    head: Head
    candidates: Candidates
    choices: Sequence[Choice]
    chosen: Choice
    times: DeviceProfile
    gamma: int


def _run(config: SelectConfig) -> int:
    """Select exits and write them to a folder. Raises ValueError for what cannot be selected."""
    if config.out.resolve() == config.exits.resolve():
        raise ValueError("--out is the folder of the candidates: give another, the candidates would be lost")
    if config.least > config.most:
        raise ValueError(f"--least {config.least} and --most {config.most}: give not less at most")
    files, verdicts = ExitFiles.read(config.exits), Verdicts.load(config.exits)
    measured = Measured.load(config.exits)
    selection = choose(config, verdicts, measured, times_of(config, measured))
    print(report(selection))
    write(config, files, measured, selection)
    return 0


def choose(config: SelectConfig, verdicts: Verdicts, measured: Measured, times: DeviceProfile) -> Selection:
    """Return the best selection, with the head that saves more. Raises ValueError where none fits the budget."""
    found: list[Selection] = []
    problems: list[ValueError] = []
    for head in verdicts.by_head:
        candidates = candidates_of(verdicts, measured, times, head, config.exit_cost)
        choices = select(candidates, config.most, config.budget)
        try:
            chosen = best(choices, config.least, config.budget)
            found.append(Selection(head, candidates, choices, chosen, times, measured.settings.gamma))
        except ValueError as problem:
            problems.append(problem)
    if not found:
        raise problems[-1]
    return max(found, key=lambda selection: selection.chosen.saved_s)


def write(config: SelectConfig, files: ExitFiles, measured: Measured, selection: Selection) -> None:
    """Write the chosen exits, their figures and the choices of every size."""
    head, chosen, times = selection.head, selection.chosen, selection.times
    files.select(chosen.layers, short_list=head is Head.SHORT).write(config.out)
    msgspec.structs.replace(measured, exits=tuple(measured.of(head, chosen.layers))).save(config.out)
    result = {
        "head": head.value,
        "budget": config.budget,
        "profile": config.profile,
        "times": {
            "verify_s": times.verify_s,
            "draft_s": times.draft_s,
            "one_way_s": times.one_way_s,
            "gamma": selection.gamma,
            "declared": is_declared(times),
        },
        "candidates": list(selection.candidates.layers),
        "chosen": list(chosen.layers),
        "sizes": [asdict(choice) for choice in selection.choices],
    }
    (config.out / RESULT_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def is_declared(times: DeviceProfile) -> bool:
    """Return whether times are declared, and not measured here: only the profile called `raw` declares none."""
    return times.name != RAW.name


def times_of(config: SelectConfig, measured: Measured) -> DeviceProfile:
    """Return the times to select for: the profile's, else measured ones. Raises ValueError for impossible ones."""
    profile = load_profile(config.profile)
    if profile.is_raw:
        profile = DeviceProfile(RAW.name, measured.draft_s, measured.verify_s)
    if profile.verify_s <= 0.0 or profile.draft_s <= 0.0:
        raise ValueError(
            f"T_q {profile.verify_s:g} s, T_p {profile.draft_s:g} s: both must be above 0, for exits save drafting "
            "time during a verification; give another --profile"
        )
    return profile


def candidates_of(
    verdicts: Verdicts, measured: Measured, times: DeviceProfile, head: Head, exit_cost: float | None = None
) -> Candidates:
    """Return what to select from; `exit_cost` is the share of a verification that each exit adds, None as measured.

    Raises ValueError where figures and verdicts are not of the same exits.
    """
    figures = measured.of(head)
    if tuple(each.layer for each in figures) != verdicts.layers:
        raise ValueError("the measured figures and the verdicts are of different exits: run measure-exits again")
    own = [each.cost_s / measured.verify_s if exit_cost is None else exit_cost for each in figures]
    return Candidates(
        verdicts.layers,
        verdicts.by_head[head].agreed,
        verdicts.ended,
        tuple(
            times.verify_s - times.layer_due_s(each.layer, measured.num_layers) if is_declared(times) else each.lead_s
            for each in figures
        ),
        tuple(share * times.verify_s for share in own),
        times.verify_s,
        measured.settings.gamma * times.draft_s,
    )


def best(choices: Sequence[Choice], least: int, budget: float) -> Choice:
    """Return what saves most with at least `least` exits. Raises ValueError where so many cost too much."""
    enough = [choice for choice in choices if len(choice.layers) >= least]
    if not enough:
        most = max(len(choice.layers) for choice in choices)
        raise ValueError(
            f"no {least} exits fit into --budget {budget:g} of a verification, {most} do; raise --budget, lower "
            "--least, or measure with a short list"
        )
    return max(enough, key=lambda choice: choice.saved_s)


def report(selection: Selection) -> str:
    """Return the tables that the command prints."""
    candidates, chosen, head, times = selection.candidates, selection.chosen, selection.head, selection.times
    # A round of `sd`: draft, up, verification, down.
    round_s = selection.gamma * times.draft_s + times.verify_s + 2 * times.one_way_s
    lines = [
        f"T_q {1e3 * times.verify_s:.2f} ms, T_p {1e3 * times.draft_s:.2f} ms x gamma {selection.gamma}, "
        f"T_c {1e3 * times.one_way_s:.2f} ms ({'declared' if is_declared(times) else 'measured'}); {head.value} head; "
        f"{len(candidates.layers)} candidates, {len(candidates.ended)} verifications",
        "exits  saved a verification  of a round of sd  right   cost  layers",
    ]
    for choice in selection.choices:
        mark = "  <- chosen" if choice == chosen else ""
        lines.append(
            f"{len(choice.layers):5d}  {1e3 * choice.saved_s:15.2f} ms  {choice.saved_s / round_s:15.1%} "
            f"{choice.right:6.1%}  {choice.cost_s / times.verify_s:5.1%}  {', '.join(map(str, choice.layers))}{mark}"
        )
    lines.append("chosen exits: layer, lead, cost")
    for layer in chosen.layers:
        place = candidates.layers.index(layer)
        lead, cost = candidates.lead_s[place], candidates.cost_s[place]
        lines.append(f"{layer:5d}  {1e3 * lead:8.2f} ms  {1e3 * cost:8.2f} ms")
    if chosen.saved_s < 0.0:
        lines.append("these exits cost more than they save: serve without exits, or train better ones")
    return "\n".join(lines)


COMMAND = Command("select-exits", "keep the 3 to 6 measured exits that save most time", __doc__, SelectConfig, _run)
