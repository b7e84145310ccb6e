"""Says why the verifier does not start; a file of its own, because the frontend's process imports no settings."""

from speculation import optional_packages


class StartError(ValueError):
    """Says why the verifier does not start, in one sentence for the person who started it."""


def need(extra: str, *modules: str) -> None:
    """Raise StartError where the packages of an extra are not installed."""
    try:
        optional_packages.need(extra, *modules)
    except ImportError as error:
        raise StartError(str(error)) from None
