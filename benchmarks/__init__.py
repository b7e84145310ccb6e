"""Programs that make the tables and plots of docs/benchmarks.md."""

from speculation.program_exit import take_signals

take_signals()
