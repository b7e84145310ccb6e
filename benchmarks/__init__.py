"""Programs that make the tables and plots of docs/benchmarks.md."""

from speculation.early_end import begin

begin()
