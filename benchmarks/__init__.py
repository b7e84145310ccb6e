"""Programs behind the tables and plots of docs/benchmarks.md."""
