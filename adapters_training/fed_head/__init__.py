"""Training of fed heads (`speculation.fed`, docs/fed_head.md): bottleneck and head together, on a frozen target."""
