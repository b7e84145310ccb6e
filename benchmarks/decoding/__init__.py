"""Every mode, technique and queue against the others: one table and one plot a command; see docs/benchmarks.md."""
