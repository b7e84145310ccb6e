"""One command of this package: its options are a struct of settings, its errors one sentence."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from adapters_training import settings

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True)
class Command(Generic[S]):
    """A command `name`: `text` is its line in the help of all commands, `about` its own help."""

    name: str
    text: str
    about: str | None
    kind: type[S]
    """Each field is an option, and a line of the YAML file that --config names."""
    run: Callable[[S], int]
    """Returns the exit status. Raises ValueError or OSError, in one sentence, for what cannot be done."""

    def add(self, commands: Any) -> None:
        """Register the command."""
        line = commands.add_parser(
            self.name, help=self.text, description=self.about, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        settings.add_options(line, self.kind)
        line.set_defaults(run=lambda options: self.run(settings.read(self.kind, options)))
