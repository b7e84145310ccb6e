"""The systems that the break-even map marks: those of the papers, and an Orin in front of fast servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.picospec import PAIRS
from speculation.profiles import load_profile
from vlm_nav_evaluation.virtual_time import PAPERS

NANO = "Orin Nano, 4-bit engine"


class Marker(NamedTuple):
    """A system on the map, with T_p, T_q and T_c in seconds."""

    paper: str
    label: str
    draft_s: float
    verify_s: float
    one_way_s: float
    source: str
    at: tuple[float, float] = (6.0, 0.0)
    """Offset of the label in points."""
    align: str = "left"

    @property
    def place(self) -> tuple[float, float]:
        """T_p / T_q and T_c / T_q."""
        return self.draft_s / self.verify_s, self.one_way_s / self.verify_s


EARLY_EXITS: Mapping[str, tuple[str, str, tuple[float, float], str]] = {
    "go2": ("Go2 (Orin), Qwen2-VL 2B/7B", "Go2", (-6.0, 7.0), "right"),
    "jetson_vicuna_7b": ("Jetson, Vicuna 68M/7B", "Jetson, 7B", (6.0, 5.0), "left"),
    "rtx_vicuna_7b": ("RTX, Vicuna 68M/7B", "RTX, 7B", (-2.0, -13.0), "center"),
    "jetson_vicuna_13b": ("Jetson, Vicuna 160M/13B", "Jetson, 13B", (7.0, -3.0), "left"),
    "rtx_vicuna_13b": ("RTX, Vicuna 160M/13B", "RTX, 13B", (7.0, -4.0), "left"),
    "jetson_llama2_7b": ("Jetson, 68M/Llama2-7B", "", (0.0, 0.0), "left"),
    "rtx_llama2_7b": ("RTX, 68M/Llama2-7B", "", (0.0, 0.0), "left"),
}
"""Device and pair of models, label, its offset in points and its alignment, by system."""
PICOSPEC = {"Qwen3 32B": "Qwen3 0.6B/32B, GSM8K", "Llama 70B": "Llama 1B/70B, GSM8K"}
"""Pairs and tasks of `picospec.PAIRS` by label; what drafts 4 tokens is taken."""
DERIVED = "PicoSpec, Tables 1 to 3; T_q is one token of cloud decoding, T_c what the stop-and-wait round leaves"
ENGINES = {"orin_nano_llama_cpp": "llama.cpp", "orin_nano_tensorrt": "TensorRT Edge-LLM"}
"""Draft engines of four bits by the device profile that has their time of a token."""
SPECEDGE = Marker(
    "SpecEdge (RTX 4090)", "Qwen3 32B", 0.011, 0.0942, 0.01407 / 2.0,
    "Qwen3 1.7B/32B: SpecEdge, Sec. 5.1 and 5.2; T_q is that of a batch", (0.0, -15.0), "center",
)  # fmt: skip


def markers(measured: Sequence[float] = ()) -> list[Marker]:
    """Return the papers' systems, and an Orin against fast servers, those whose passes were `measured` too, in seconds.

    WISP and DSSD print too little.
    """
    found = []
    for name, (pair, label, offset, align) in EARLY_EXITS.items():
        own, table = PAPERS[name], f"{pair}: Early Exits, Table {'8(a)' if name == 'go2' else '5'}"
        found.append(Marker("Early Exits", label, own.draft_s, own.verify_s, own.one_way_s, table, offset, align))
    for model, pair in PICOSPEC.items():
        row, verify_s = PAIRS[pair], PAIRS[pair].timings.verify_s
        times = (row.drafting_s / 4, verify_s, (row.around_s - verify_s) / 2.0)
        found.append(Marker("PicoSpec (Jetson AGX)", model, *times, f"{pair}: {DERIVED}", (7.0, -3.0)))
    found.append(SPECEDGE)
    go2 = PAPERS["go2"]
    for profile, engine in ENGINES.items():
        where = f"{engine}, the Go2's T_q and T_c: Early Exits, Table 8(a); T_p: profile {profile}"
        found.append(Marker(NANO, "", load_profile(profile).draft_s, go2.verify_s, go2.one_way_s, where))
    for verify_s in (0.010, 0.020, *measured):
        server, way_s = f"T_q {1e3 * verify_s:.0f} ms", 0.010
        how = "T_q measured, T_c assumed" if verify_s in measured else "assumed"
        assumed = f"T_q {1e3 * verify_s:g} ms, T_c {1e3 * way_s:g} ms: {how}; T_p: Early Exits, Table 8(a)"
        times = (PAPERS["go2"].draft_s, verify_s, way_s)
        found.append(Marker("Orin, fast server", server, *times, assumed, (0.0, 8.0), "center"))
        for profile, engine in ENGINES.items():
            draft_s = load_profile(profile).draft_s
            where = f"{engine}, T_q {1e3 * verify_s:g} ms, T_c {1e3 * way_s:g} ms: {how}; T_p: profile {profile}"
            found.append(Marker(NANO, "", draft_s, verify_s, way_s, where))
    return found
