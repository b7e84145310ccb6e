"""Recorded bags in every mode, and the report of that."""
