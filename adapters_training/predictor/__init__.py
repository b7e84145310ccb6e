"""The acceptance predictor's training: log real drafts, fit, compare, export for the edge (WISP, Sec. 4.1, App. B)."""
