"""Many verifiers as one: a directory that sends robots to replicas; what starts, watches, drains and scales these."""
