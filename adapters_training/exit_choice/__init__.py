"""Which exits to serve: how far each can be trusted, how early it judges, what it costs, which few are worth it."""
