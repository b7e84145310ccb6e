"""Has the error of a verifier that does not start, apart because the frontend's process imports no settings."""

from speculation import optional_packages


class StartError(ValueError):
    """The verifier does not start; the text is the reason, in one sentence for the person who started it."""


def need(extra: str, *modules: str) -> None:
    """Raise StartError where the packages of an extra are not installed."""
    try:
        optional_packages.need(extra, *modules)
    except ImportError as error:
        raise StartError(str(error)) from None
