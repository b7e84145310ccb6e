"""Serves one model by many verifiers: sends robots to replicas, and starts, watches, drains and scales these."""
