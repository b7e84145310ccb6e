"""Both policies as in production, on virtual time; see docs/benchmarks.md."""

from vlm_nav_evaluation.virtual_time.decoding import SERVER, decode, drafting, figures_of, run_arms, run_mode
from vlm_nav_evaluation.virtual_time.recording import RecordedStep, Recording
from vlm_nav_evaluation.virtual_time.synthetic import Synthetic
from vlm_nav_evaluation.virtual_time.timings import PAPERS, Timings, load_timings

__all__ = [
    "PAPERS",
    "SERVER",
    "RecordedStep",
    "Recording",
    "Synthetic",
    "Timings",
    "decode",
    "drafting",
    "figures_of",
    "load_timings",
    "run_arms",
    "run_mode",
]
