"""Files from elsewhere run no code: what reads them cannot. Held over the source of everything that is shipped."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.test_dependencies import ROOT, files, name_of

NO_CODE = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
"""Modules that run what a file holds."""
LOADERS = ("ForConditionalGeneration.from_pretrained", "ForCausalLM.from_pretrained", "AutoModel.from_pretrained")
SCRIPTS = sorted((ROOT / "scripts").rglob("*.py")) + sorted((ROOT / "launch").rglob("*.py"))


def calls(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of functions and methods with the dotted names of what is called."""
    for node in nodes:
        if isinstance(node, ast.Call):
            last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield ast.unparse(node.func) if "load" in last or last == "from_pretrained" else last, node


def option(call: ast.Call, name: str) -> object:
    """Return the constant that a call gives an option; None where it gives none, or no constant."""
    values = [each.value for each in call.keywords if each.arg == name]
    return values[0].value if values and isinstance(values[0], ast.Constant) else None


def gives(call: ast.Call, name: str) -> bool:
    return any(each.arg == name for each in call.keywords)


def dangers(tree: ast.AST) -> list[str]:
    """Return what in a file may run code that another file brings."""
    found, nodes = [], list(ast.walk(tree))
    for node in nodes:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [f"imports {name}" for name in names if name.split(".")[0] in NO_CODE]
    for name, call in calls(nodes):
        if name == "torch.load" and option(call, "weights_only") is not True:
            found.append("torch.load without weights_only=True")
        if name in ("np.load", "numpy.load") and option(call, "allow_pickle") is not False:
            found.append("np.load without allow_pickle=False")
        if gives(call, "trust_remote_code") and option(call, "trust_remote_code") is not False:
            found.append("trust_remote_code")
        loads_weights = name.endswith((*LOADERS, "_class.from_pretrained"))
        if loads_weights and option(call, "use_safetensors") is not True:
            found.append(f"{name} without use_safetensors=True")
        if name in ("yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.hub.load"):
            found.append(f"{name} in place of what only reads")
        if isinstance(call.func, ast.Name) and name in ("eval", "exec"):
            found.append(name)
    return found


def test_no_file_from_elsewhere_can_run_code() -> None:
    found = {name_of(path): dangers(ast.parse(path.read_text(encoding="utf-8"))) for path in (*files(), *SCRIPTS)}
    assert len(found) > 300 and not {name: each for name, each in found.items() if each}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "torch.load(path)",
        "torch.load(path, weights_only=maybe)",
        "np.load(path, allow_pickle=True)",
        "AutoTokenizer.from_pretrained(folder, trust_remote_code=given)",
        "Qwen2VLForConditionalGeneration.from_pretrained(folder)",
        "yaml.load(text)",
        "eval(text)",
    ],
)
def test_what_would_run_code_is_found(line: str) -> None:
    assert len(dangers(ast.parse(line))) == 1


def test_what_only_reads_is_not() -> None:
    lines = (
        "torch.load(path, map_location='cpu', weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "Qwen2VLForConditionalGeneration.from_pretrained(folder, use_safetensors=True, trust_remote_code=False)",
        "yaml.safe_load(text)",
        "model.eval()",
    )
    assert not dangers(ast.parse("\n".join(lines)))
