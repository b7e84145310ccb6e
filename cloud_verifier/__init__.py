"""The verifier: one target model, many robots, one thread."""

from speculation.early_end import begin

begin()
