"""Command line of the models: `inspect`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from speculation.settings import CommandLine

EXAMPLE = """example:
  python -m speculation.vlm inspect Qwen/Qwen2-VL-7B-Instruct Qwen/Qwen2-VL-2B-Instruct

Reads configs, tokenizers and the headers of weight files, no weights: seconds for a 7B. A hub name means what lies in
this machine's Hugging Face cache. Exit status: 0 usable, 1 no pair, 2 no model that can be used.
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top: argparse.ArgumentParser = CommandLine(prog="python -m speculation.vlm", description="Looks at models.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    text = "Show what a model folder is, how much memory it needs and, of two, whether they can be target and draft."
    inspect = commands.add_parser(
        "inspect", help=text, description=text, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    inspect.add_argument("model", nargs="+", metavar="DIR", help="one or two folders or names on the hub")
    inspect.add_argument("--allow-download", action="store_true", help="fetch hub names that are not on disk")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code; what is no model gives 2 after one sentence on stderr."""
    options = parser().parse_args(arguments)
    if not options.allow_download:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Late, so that a wrong command line answers at once.
    from speculation.vlm.inspect import free_memory, inspect_folder, pair_problems, table

    try:
        if len(options.model) > 2:
            raise ValueError(f"{len(options.model)} models: give one, or two that could be a pair")
        reports = [inspect_folder(name, allow_download=options.allow_download) for name in options.model]
    except (ValueError, OSError) as error:
        print(f"speculation.vlm: {error}", file=sys.stderr)
        return 2
    print(table(reports, free_memory()))
    return 1 if len(reports) == 2 and pair_problems(*reports) else 0


if __name__ == "__main__":
    sys.exit(main())
