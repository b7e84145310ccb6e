"""Fail where a saved result does not say what it is of, or a page prints another figure than its result file has."""

from __future__ import annotations

import sys

from spec_vlm_nav.graph import PROJECT
from vlm_nav_evaluation.results import RESULTS, page_problems, problems


def main() -> int:
    """Print what is wrong with the files of benchmarks/results and with the pages, and return the exit status."""
    found = [problem for path in sorted(RESULTS.rglob("*.json")) for problem in problems(path)]
    pages = [PROJECT / "README.md", PROJECT / "models" / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
    found += [problem for page in pages for problem in page_problems(page)]
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
