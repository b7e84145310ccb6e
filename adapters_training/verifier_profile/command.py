"""Measure what a target's passes cost here: T = a sum(L_new) + b_c sum(L_total L_new) + b_r sum(L_cached) + c.

WISP, Eq. 19 and Appendix C: real passes in 123 configurations are fitted by non-negative least squares and held against
50 others. The verifier starts with the file that lies beside its model, predicts its passes by it, corrects it by
those that it runs, and chooses batch size and collect time; virtual time takes it as --cost.

writes, into --out or else the model's folder:
  pass_cost.json   coefficients, R2, MAPE, MAE and RMSE of both sets, image encoding and prefill

example, on a machine that does little else:
  OMP_NUM_THREADS=1 python -m adapters_training profile-verifier --target models/target

time: 12 minutes of one CPU core for the embedded target; --quick: 40 seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from adapters_training.devices import machine
from adapters_training.files import replacing
from adapters_training.settings import Command
from adapters_training.verifier_profile.configurations import LONGEST, Configuration, fitted, held_out, training
from adapters_training.verifier_profile.measure import IMAGE_SIDES, QUICK_SIDES, ProfileConfig, Profiler
from speculation.pass_cost import COEFFICIENTS, COST_FILE, CostProfile, Floats, ImageRow, Load, PassCost, Quality
from speculation.vlm.folder import find_model
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm

QUICK_SHARE, QUICK_EVERY, QUICK_WARM_UP = 0.25, 10, 1
_FEATURES = 3
UNITS = {"token_s": ("us a fed token", 1e6), "interaction_s": ("ns a query-key pair", 1e9),
         "cached_s": ("us a cached token", 1e6), "constant_s": ("ms a pass", 1e3)}  # fmt: skip


def _run(config: ProfileConfig) -> int:
    """Run the command. Raises ValueError, in one sentence, for what cannot be measured."""
    if config.quick and not config.out:
        raise ValueError("--quick measures too little to serve by; name another folder than the model's with --out")
    folder = find_model(config.target, allow_download=config.allow_download)
    out = Path(config.out) if config.out else folder
    out.mkdir(parents=True, exist_ok=True)
    vlm = load_vlm(folder, config)
    train, unseen = (configurations(each, vlm.context, config.quick) for each in (training(), held_out()))
    profile = profile_of(vlm, train, unseen, config)
    with replacing(out / COST_FILE) as path:
        profile.save(path)
    print(report(profile))
    print(f"written: {out / COST_FILE}")
    return 0


def configurations(every: Sequence[Configuration], context: int, quick: bool) -> list[Configuration]:
    """Return those to measure, shorter where the model's context or `quick` asks for it, and print that they are."""
    longest = min(context, LONGEST)
    if quick:
        every, longest = every[::QUICK_EVERY], int(QUICK_SHARE * longest)
    found = fitted(every, longest)
    if longest < LONGEST:
        print(
            f"{len(found)} configurations, lengths scaled to rows of {longest} tokens at most (the paper's: {LONGEST})"
        )
    return found


def profile_of(
    vlm: Vlm, train: Sequence[Configuration], unseen: Sequence[Configuration], config: ProfileConfig
) -> CostProfile:
    """Measure a model and return its profile."""
    if config.quick:
        config = msgspec.structs.replace(config, warm_up=min(config.warm_up, QUICK_WARM_UP))
    profiler = Profiler(vlm, config)
    # One random order over both, so that whatever else the machine does falls on both alike.
    seconds = profiler.passes([*train, *unseen])
    own, other = seconds[: len(train)], seconds[len(train) :]
    sides = QUICK_SIDES if config.quick else IMAGE_SIDES
    loads, others = ([each.load for each in part] for part in (train, unseen))
    cost = PassCost.fit(loads, own)
    images = profiler.images(sides, cost) if vlm.sees_images else []
    return CostProfile(
        fingerprint=vlm.fingerprint,
        name=vlm.name,
        dtype=str(vlm.dtype).removeprefix("torch."),
        device=str(vlm.device),
        attention="sdpa",
        threads=config.threads or 0,
        machine=machine(str(vlm.device)),
        clock=profiler.clock.value,
        longest=max(each.longest for each in [*train, *unseen]),
        runs=config.runs,
        cost=cost,
        train=quality(cost, loads, own),
        test=quality(cost, others, other),
        encoding=encoding_of(images),
        images=tuple(images),
    )


def quality(cost: PassCost, loads: Sequence[Load], seconds: Floats) -> Quality:
    """Return how well a cost predicts passes of these times [n], n above 1."""
    off = np.array([cost.seconds(load) for load in loads]) - seconds
    count = len(seconds)
    r2 = 1.0 - float(off @ off) / float(np.sum((seconds - seconds.mean()) ** 2))
    return Quality(
        samples=count,
        r2=r2,
        adjusted_r2=1.0 - (1.0 - r2) * (count - 1) / max(1, count - _FEATURES - 1),
        rmse_s=float(np.sqrt(np.mean(off**2))),
        mae_s=float(np.mean(np.abs(off))),
        mape=float(np.mean(np.abs(off) / seconds)),
        max_error_s=float(np.abs(off).max()),
    )


def encoding_of(images: Sequence[ImageRow]) -> PassCost | None:
    """Return what the vision tower costs over `Load.row(image tokens)`; None without images."""
    if not images:
        return None
    loads = [Load.row(each.image_tokens) for each in images]
    # Every part of an image is scored against every other.
    return PassCost.fit(loads, [each.encode_s for each in images], causal=False)


def report(profile: CostProfile) -> str:
    """Return the figures as tables."""
    lines = [
        f"{profile.name}, {profile.dtype} on {profile.device}, {profile.clock} time, median of {profile.runs} runs"
    ]
    for name in COEFFICIENTS:
        unit, factor = UNITS[name]
        lines.append(f"  {factor * getattr(profile.cost, name):9.3f} {unit}")
    for name, figures in (("training", profile.train), ("test", profile.test)):
        lines.append(
            f"  {name:8} {figures.samples:3} passes: R2 {figures.r2:.4f} (adjusted {figures.adjusted_r2:.4f}), "
            f"MAPE {figures.mape:.2%}, MAE {1e3 * figures.mae_s:.2f} ms, RMSE {1e3 * figures.rmse_s:.2f} ms, "
            f"largest error {1e3 * figures.max_error_s:.1f} ms"
        )
    for row in profile.images:
        lines.append(
            f"  frame {row.height} x {row.width}, {row.image_tokens} image tokens: encoding {1e3 * row.encode_s:.1f} "
            f"ms, prefill of {row.prompt_tokens} tokens {1e3 * row.prefill_s:.1f} ms (predicted "
            f"{1e3 * row.predicted_s:.1f})"
        )
    return "\n".join([*lines, profile.machine])


COMMAND = Command(
    "profile-verifier", "measure what a target's passes cost on this machine", __doc__, ProfileConfig, _run
)
