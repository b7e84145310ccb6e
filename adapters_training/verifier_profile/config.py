"""Settings of `profile-verifier`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from speculation.vlm.settings import ModelSettings


class ProfileConfig(ModelSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is measured, and how the model is loaded. Each field is an option and a line of a YAML file."""

    target: Annotated[str, Meta(min_length=1, description="model folder (or hub name)")]
    out: Annotated[str, Meta(description="folder for the file and its plot; none: the model's")] = ""
    warm_up: Annotated[int, Meta(ge=0, le=1000, description="passes of each configuration before those that count")] = (
        10
    )
    runs: Annotated[
        int, Meta(ge=1, le=1000, description="passes of each configuration, of which the median counts")
    ] = 3
    bootstraps: Annotated[int, Meta(ge=10, le=100_000, description="resamplings for the 95 % intervals")] = 1000
    seed: Annotated[int, Meta(ge=0, description="of tokens and random configurations")] = 0
    quick: Annotated[
        bool,
        Meta(description="a tenth of the configurations at a quarter of the length, 1 warm-up: to try it, not to use"),
    ] = False
