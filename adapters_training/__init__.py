"""Training: the embedded draft/target pair and early-exit adapters for any target model."""
