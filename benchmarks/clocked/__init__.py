"""The clocked engine: both policies as in production, on virtual time; see docs/clocked.md."""

from benchmarks.clocked.engine import SERVER, decode, drafting
from benchmarks.clocked.facts import Facts, Recording
from benchmarks.clocked.synthetic import Synthetic
from benchmarks.clocked.timings import PAPERS, Timings, load_timings

__all__ = [
    "PAPERS",
    "SERVER",
    "Facts",
    "Recording",
    "Synthetic",
    "Timings",
    "decode",
    "drafting",
    "load_timings",
]
