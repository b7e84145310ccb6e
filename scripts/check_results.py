"""Fail where a saved result does not say what it is of, or a page prints another figure than its result file has.

With --write the figures of the result files are printed in the pages; what was changed is listed, to be read: words
beside a figure may have become wrong.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress

from spec_vlm_nav.graph import PROJECT
from vlm_nav_evaluation.results import RESULTS, page_problems, problems, renew_page


def main() -> int:
    """Print what is wrong with the files of benchmarks/results and with the pages, and return the exit status."""
    line = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    line.add_argument("--write", action="store_true", help="print the result files' figures in the pages")
    write = line.parse_args().write
    found = [problem for path in sorted(RESULTS.rglob("*.json")) for problem in problems(path)]
    pages = [PROJECT / "README.md", PROJECT / "models" / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
    for page in pages:
        if write:
            with suppress(ValueError):  # `page_problems` has the reason
                for change in renew_page(page):
                    print(change)
        found += page_problems(page)
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
