"""Fail where a saved result does not say which commit, machine and pair of models it is of."""

from __future__ import annotations

import sys

from vlm_nav_evaluation.results import RESULTS, problems


def main() -> int:
    """Print what is wrong with the files of benchmarks/results, and return the exit status."""
    found = [problem for path in sorted(RESULTS.rglob("*.json")) for problem in problems(path)]
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
