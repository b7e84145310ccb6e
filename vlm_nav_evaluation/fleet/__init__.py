"""Many robots and one verifier, or many, on virtual time: production's scheduler decides."""
