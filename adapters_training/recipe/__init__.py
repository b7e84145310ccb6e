"""The embedded pair from its rooms to its folder, by one command."""
