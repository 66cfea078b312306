"""What the documents promise is run: their commands exist, their studies load, their links lead somewhere."""

import ast
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from project_folder import REPO, Project
from servelab.config.load import load
from servelab.grid import server_starts

DOCUMENTS = sorted(
    [
        *REPO.glob("*.md"),
        *(REPO / "docs").glob("*.md"),
        REPO / "config/README.md",
        REPO / "benchmarks/README.md",
    ]
)
DOCUMENTS = [path for path in DOCUMENTS if path.is_file()]
README = (REPO / "README.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Contents of the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """Lines of console blocks that begin with the prompt, and commands of inline code that begin with snakemake."""
    lines = [
        line[2:] for block in blocks(text, "console") for line in block.splitlines() if line.startswith("$ ")
    ]
    return lines + re.findall(r"`((?:snakemake|pytest|pip) [^`]+)`", text)


def console_commands() -> list[tuple[str, str]]:
    return [
        (path.name, command) for path in DOCUMENTS for command in commands(path.read_text(encoding="utf-8"))
    ]


def simple(command: str) -> list[list[str]]:
    """A command line as its simple commands, each a list of words."""
    return [shlex.split(part) for part in command.split(" && ")]


def targets() -> set[str]:
    """Names that can be asked of Snakemake: rules of this project."""
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for path in [*REPO.glob("Snakefile"), *(REPO / "workflow/rules").glob("*.smk")]
    )
    return set(re.findall(r"^\s*rule (\w+):", text, re.MULTILINE))


def test_the_readme_has_its_examples() -> None:
    """The two commands, `plan`, and a study are there: the tests below do not pass on an empty README."""
    shown = commands(README)
    assert (
        "python3 -m venv .venv && . .venv/bin/activate && pip install -e . && snakemake --cores 1 all"
        in shown
    )
    assert "pip install -e '.[test]' && pytest" in shown
    assert "snakemake --cores 1 plan" in shown
    assert blocks(README, "yaml")


@pytest.mark.parametrize(("document", "command"), console_commands())
def test_commands_exist(document: str, command: str) -> None:
    """Documented commands name rules, pytest markers, extras and scripts that exist."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    markers = {line.partition(":")[0] for line in project["tool"]["pytest"]["ini_options"]["markers"]}
    for words in simple(command):
        if words[0] == "snakemake":
            asked = [word for word in words[1:] if re.fullmatch(r"[a-z_]+", word)]
            assert "--cores" in words, command
            assert set(asked) <= targets(), f"{command}: no rule {set(asked) - targets()}"
        elif words[0] == "pytest" and "-m" in words:
            named = set(re.findall(r"[a-z]+", words[words.index("-m") + 1])) - {"not", "and", "or"}
            assert named and named <= markers, command
        elif words[0].startswith("python") and len(words) > 1 and words[1].endswith(".py"):
            assert (REPO / words[1]).is_file(), f"{command}: no {words[1]}"
        for extra in re.findall(r"\.\[(\w+)\]", command):
            assert extra in project["project"]["optional-dependencies"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """Every link into the repository leads to a file, every link into a document to a heading of it."""
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        assert place.exists(), f"{path.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", place.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{path.name}: {target}"


def studies() -> list[dict[str, Any]]:
    """The README's YAML examples that are whole studies."""
    return [
        value for block in blocks(README, "yaml") for value in yaml.safe_load_all(block) if "study" in value
    ]


@pytest.mark.parametrize("study", studies(), ids=lambda study: study["study"])
def test_studies_of_the_readme_can_be_measured(study: dict[str, Any], tmp_path: Path) -> None:
    """Every study of the README loads and expands, its model's folder being one that is here."""
    root = Project.make(tmp_path / "project").root
    for file in (REPO / "config/engines").glob("*.yaml"):
        (root / "config/engines" / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    study["server"]["max_model_len"] = min(study["server"].get("max_model_len", 8192), 8192)
    for entry in study["models"]:
        for keys in entry.values() if isinstance(entry, dict) else ():
            keys["path"] = str(REPO / "config/models/qwen3-0.6b")
    starts = server_starts(load(study, root))
    assert {start.experiment for start in starts} == set(study["experiments"])


def inline_engines() -> list[dict[str, Any]]:
    found = re.findall(r"`engine: (\{[^`]+\})`", README)
    return [yaml.safe_load(text) for text in found]


def test_inline_engines_of_the_readme_are_possible(tmp_path: Path) -> None:
    """Engines that the README writes in a sentence load as they stand."""
    root = Project.make(tmp_path / "project").root
    assert inline_engines()
    for engine in inline_engines():
        study = {
            "study": "s",
            "engine": engine,
            "models": ["tiny"],
            "experiments": {"load_sweep": {"input_tokens": 8, "output_tokens": 8}},
        }
        assert server_starts(load(study, root))


def test_overrides_of_the_readme_change_the_study() -> None:
    """Each `--config set=[…]` of the README changes the default study into another one that can be measured."""
    default = yaml.safe_load((REPO / "config/config.yaml").read_text(encoding="utf-8"))
    plain = load(default, REPO)
    found = 0
    for command in commands(README):
        for words in simple(command):
            for word in words:
                if word.startswith("set="):
                    changed = load({**default, "set": word.removeprefix("set=")}, REPO)
                    assert changed.canonical() != plain.canonical()
                    assert server_starts(changed)
                    found += 1
    assert found


@pytest.mark.parametrize("script", sorted(path.name for path in (REPO / "workflow/scripts").glob("*.py")))
def test_every_script_explains_itself(script: str) -> None:
    """A person can ask any script with --help what it does."""
    text = (REPO / "workflow/scripts" / script).read_text(encoding="utf-8")
    assert "argparse.ArgumentParser(description=__doc__)" in text
    assert text.startswith("#!/usr/bin/env python3\n")
    assert len(ast.get_docstring(ast.parse(text)) or "") > 30
