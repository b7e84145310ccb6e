"""Many robots and one verifier on virtual time: production's scheduler decides."""
