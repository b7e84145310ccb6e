"""Command `profile-verifier`: what a target's passes cost on a machine."""
