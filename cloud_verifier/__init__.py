"""The verifier: one target model, many robots, one thread."""

from speculation.program_exit import take_signals

take_signals()
