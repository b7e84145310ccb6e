"""A published text pair (docs/benchmarks.md): SmolLM2-135M-Instruct out of a Python package, drafts and exits that are
trained here, and all of it beside transformers' own generation. Optional: no test and no other program needs it."""
