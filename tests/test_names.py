"""A public name exists once in the package, so that a reader who meets it knows which one it is."""

import ast
from collections import defaultdict
from pathlib import Path

import factorized_fl

PACKAGE = Path(factorized_fl.__file__ or "").parent


def definitions(source: str) -> list[str]:
    """The public functions and classes at the top level of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = [node.name for node in ast.parse(source).body if isinstance(node, kinds)]
    return [name for name in names if not name.startswith("_")]


def test_no_public_name_exists_twice() -> None:
    modules = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in definitions(path.read_text(encoding="utf-8")):
            modules[name].append(path.relative_to(PACKAGE).as_posix())
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}


def test_definitions_are_the_public_ones_at_the_top() -> None:
    source = "def one(): ...\ndef _two(): ...\nclass Three:\n    def four(self): ...\nasync def five(): ...\nsix = 6\n"
    assert definitions(source) == ["one", "Three", "five"]
