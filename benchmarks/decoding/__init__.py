"""Every mode, technique and queue against the others: one table and one picture a command; see docs/benchmarks.md."""
