"""A change of what is measured must be declared: harmless, or a higher measurement version.

Run as a program with --harmless to declare the measuring modules, as they are now, to measure what they did before.
"""

import ast
import hashlib
import json
import sys
from pathlib import Path

from servelab import measurement_version
from servelab.measurement_version import MEASUREMENT_VERSION, MEASURING_MODULES, SUPPORTING_MODULES

LIBRARY = Path(measurement_version.__file__).parent
DECLARED = Path(__file__).with_name("measuring_modules.json")


def meaning(source: str) -> str:
    """Digest of a module's syntax tree without docstrings; comments and layout are no part of a tree."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(
            node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        ) and ast.get_docstring(node):
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def modules_now() -> dict[str, str]:
    """Measuring module → digest of what it does."""
    return {name: meaning((LIBRARY / name).read_text(encoding="utf-8")) for name in MEASURING_MODULES}


def imported(name: str) -> set[str]:
    """servelab's modules that a module imports, everywhere in it."""
    found = set()
    for node in ast.walk(ast.parse((LIBRARY / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    files = {
        part.removeprefix("servelab.").replace(".", "/") + ".py"
        for part in found
        if part.startswith("servelab.")
    }
    return {file for file in files if (LIBRARY / file).is_file()}


def taking_part() -> set[str]:
    """Every module that measuring a point imports, all the way down."""
    seen: set[str] = set()
    todo = ["measure.py"]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += imported(name)
    return seen


def test_changed_measuring_modules_are_declared() -> None:
    """A measuring module that does something else than declared fails here until somebody says what it means."""
    declared = json.loads(DECLARED.read_text(encoding="utf-8"))
    now = modules_now()
    changed = sorted(
        name for name in {*now, *declared["modules"]} if now.get(name) != declared["modules"].get(name)
    )
    assert not changed, (
        f"{', '.join(changed)} changed. If points measured from now on mean something else than those kept, raise "
        "MEASUREMENT_VERSION in measurement_version.py. Then, or if they mean the same, declare it: "
        "python tests/test_measurement_version.py --harmless"
    )
    assert declared["measurement_version"] == MEASUREMENT_VERSION, (
        "raised: declare the modules as they are now"
    )


def test_every_module_that_takes_part_is_listed() -> None:
    """A module that measuring imports is either watched here or named as one that only supports it."""
    assert taking_part() - set(SUPPORTING_MODULES) == set(MEASURING_MODULES)
    assert not set(MEASURING_MODULES) & set(SUPPORTING_MODULES)


def test_comments_and_docstrings_mean_nothing_and_code_does() -> None:
    """The digest is blind to words about the code and sees any change of the code."""
    code = 'def f(x: int) -> int:\n    """Doc."""\n    return x + 1\n'
    assert meaning(code) == meaning(
        '"""Module."""\n# why\ndef f(x: int) -> int:\n\n    return (x + 1)  # more\n'
    )
    assert meaning(code) != meaning(code.replace("+ 1", "+ 2"))


if __name__ == "__main__":
    if sys.argv[1:] != ["--harmless"]:
        sys.exit(f"usage: {sys.argv[0]} --harmless")
    value = {"measurement_version": MEASUREMENT_VERSION, "modules": modules_now()}
    DECLARED.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
