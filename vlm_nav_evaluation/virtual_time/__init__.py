"""Both policies as in production, on virtual time; see docs/benchmarks.md."""

from vlm_nav_evaluation.virtual_time.backend import VirtualTime
from vlm_nav_evaluation.virtual_time.decoding import SERVER, decode, drafting, run_mode
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
    "VirtualTime",
    "decode",
    "drafting",
    "load_timings",
    "run_mode",
]
