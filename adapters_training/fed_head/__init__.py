"""Training of fed heads (`speculation.fed`, docs/decoding.md): bottleneck and head together, on a frozen target."""
