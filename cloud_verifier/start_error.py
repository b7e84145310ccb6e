"""Why the verifier does not start; of its own, because the frontend's process has no use for all other settings."""

from speculation import extras


class StartError(ValueError):
    """Why the verifier does not start, in one sentence for the person who started it."""


def need(extra: str, *modules: str) -> None:
    """Raise StartError where the packages of an extra are not installed."""
    try:
        extras.need(extra, *modules)
    except ImportError as error:
        raise StartError(str(error)) from None
