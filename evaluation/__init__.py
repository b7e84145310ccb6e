"""Offline evaluation: recorded bags and simulated rooms, decoding mode by decoding mode."""
