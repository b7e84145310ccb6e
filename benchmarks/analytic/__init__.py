"""The papers' latency and throughput models, one module a paper: what they print, as data, and what they derive, as
pure functions. `python -m benchmarks.analytic` holds formulas, papers and the clocked engine side by side."""
