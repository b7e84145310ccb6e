"""The demo as `make demo` starts it: python -m vlm_nav_evaluation.demo."""

from __future__ import annotations

import sys

from vlm_nav_evaluation.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))
