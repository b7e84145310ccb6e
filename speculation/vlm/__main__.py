"""Command line of the models: `inspect`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

from speculation.settings import path_flag

EXAMPLE = """examples:
  python -m speculation.vlm inspect models/target models/draft
  python -m speculation.vlm inspect models/target models/draft --fed-head models/fed_head
  python -m speculation.vlm inspect Qwen/Qwen2-VL-7B-Instruct Qwen/Qwen2-VL-2B-Instruct --json
  python -m speculation.vlm inspect Qwen/Qwen2-VL-7B-Instruct draft.gguf,mmproj.gguf

Reads configs, tokenizers and the headers of weight files, no weights: seconds for a 7B. A hub name means what lies in
this machine's Hugging Face cache. Exit status: 0 usable, 1 not usable or no pair, 2 no model at all.
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(prog="python -m speculation.vlm", description="Looks at models.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    text = "Show what a model folder is, how much memory it needs and, of two, whether they can be target and draft."
    inspect = commands.add_parser(
        "inspect", help=text, description=text, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    inspect.add_argument(
        "model",
        nargs="+",
        metavar="DIR",
        help="one or two folders or names on the hub; the second may be MODEL.gguf[,MMPROJ.gguf]",
    )
    inspect.add_argument(
        "--fed-head", type=path_flag, metavar="DIR", help="a fed head, and how it goes with these models"
    )
    inspect.add_argument("--capacity", type=int, default=2048, help="cache slots of a session (default: %(default)s)")
    inspect.add_argument("--allow-download", action="store_true", help="fetch hub names that are not on disk")
    inspect.add_argument("--json", action="store_true", help="print JSON, sizes in bytes")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code; what is no model gives 2 after one sentence on stderr."""
    options = parser().parse_args(arguments)
    if not options.allow_download:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Late, so that a wrong command line answers at once.
    import msgspec

    from speculation.fed.inspect import inspect_head, lines
    from speculation.vlm import inspect_gguf as of_gguf
    from speculation.vlm.folder import gguf_files
    from speculation.vlm.inspect import free_memory, inspect_folder, inspect_pair, table

    try:
        if len(options.model) > 2:
            raise ValueError(f"{len(options.model)} models: give one, or two that could be a pair")
        if options.capacity < 1:
            raise ValueError(f"--capacity {options.capacity}: give at least 1")
        drafts = [files for name in options.model[1:] if (files := gguf_files(name))]
        folders = options.model[: len(options.model) - len(drafts)]
        reports = [inspect_folder(name, options.capacity, allow_download=options.allow_download) for name in folders]
        gguf = of_gguf.inspect_gguf(drafts[0], reports[0]) if drafts else None
        head = inspect_head(options.fed_head, reports) if options.fed_head is not None else None
    except (ValueError, OSError) as error:
        print(f"speculation.vlm: {error}", file=sys.stderr)
        return 2
    pair = inspect_pair(*reports) if len(reports) == 2 else None
    free = free_memory()
    if options.json:
        found = {"models": [asdict(each) for each in reports], "free": free, "pair": pair and asdict(pair)}
        if gguf is not None:
            found["gguf"] = asdict(gguf)
        if head is not None:
            found["fed_head"] = asdict(head) | {"config": msgspec.to_builtins(head.config)}
        print(json.dumps(found, indent=1))
    else:
        more = [*(of_gguf.lines(gguf) if gguf is not None else ()), *(lines(head) if head is not None else ())]
        print("\n".join([table(reports, free, pair), *more]))
    compared = (pair, gguf, head)
    problems = [*(each.problem for each in reports), *(each.problems for each in compared if each is not None)]
    return 1 if any(problems) else 0


if __name__ == "__main__":
    sys.exit(main())
