"""The page of a recorded run: its bag read back, plots, the time line of an answer, tables."""
