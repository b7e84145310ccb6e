"""The verifier: one target model, many robots, one thread."""
