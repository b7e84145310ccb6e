"""Recorded bags in every mode, the report of that, and two reports side by side."""
