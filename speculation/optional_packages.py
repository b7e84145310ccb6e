"""Gives a sentence in place of a traceback where an extra is not installed, or a package does not load."""

from __future__ import annotations

import sys
import traceback
from importlib import metadata
from importlib.util import find_spec


def need(extra: str, *modules: str) -> None:
    """Raise ImportError, naming `extra` and what is missing, where one of its `modules` cannot be found."""
    missing = [name for name in modules if not _found(name)]
    if missing:
        raise ImportError(f"{', '.join(missing)} not found: pip install 'spec-vlm-nav-core[{extra}]'")


def _found(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a package that `name` is in
        return False


def broken_package(error: BaseException | None, ours: tuple[str, ...]) -> str:
    """Return which installed package fails while it is imported, why and what to do; empty for any other error.

    transformers imports what it finds installed, torchvision among it, and its error names a class of its own instead.
    The package is the one whose module ran last; `ours` are the packages in which an error is this project's own.
    """
    while isinstance(error, Exception):
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_name == "<module>"]
        package = str(frames[-1].f_globals.get("__name__", "")).partition(".")[0] if frames else ""
        if package and package not in {"__main__", *ours, *sys.stdlib_module_names}:
            version = _installed_version(package)
            if not version or _needs_another(package, error):
                return ""
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            return (
                f"{package} {version} is installed but does not load ({reason}); install the {package} that "
                f"goes with torch {_version('torch')} and numpy {_version('numpy')}, or, where nothing needs it, "
                f"uninstall it: {sys.executable} -m pip uninstall {package}"
            )
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return ""


def _installed_version(package: str) -> str:
    """Return the version of a package that pip or its like has installed; empty for any other.

    What a system or a sourced ROS brings, rclpy among it, may fail for another Python, and is not for pip to uninstall.
    """
    try:
        about = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return ""
    return about.version if about.read_text("INSTALLER") else ""


def _needs_another(package: str, error: Exception) -> bool:
    """Whether what fails is not the package, but that another one is missing."""
    return isinstance(error, ModuleNotFoundError) and (error.name or package).partition(".")[0] != package


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(of an unknown version)"
