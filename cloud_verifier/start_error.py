"""Why the verifier does not start; of its own, because the frontend's process has no use for all other settings."""


class StartError(ValueError):
    """Why the verifier does not start, in one sentence for the person who started it."""
