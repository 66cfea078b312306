"""config/README.md and the code say the same: every key, its default, and examples that load."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from servelab import experiments
from servelab.config import schema
from servelab.config.load import load

REPO = Path(__file__).parents[1]
TEXT = (REPO / "config/README.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| `([a-z_0-9]+)` \| ([^|]+) \| `([^|]+)` \| ([^|]+) \|$")
SECTIONS: dict[str, type] = {
    "Study": schema.Study,
    "Objective": schema.Objective,
    "Refine": schema.Refine,
    "Report": schema.Report,
    "Evidence": schema.Evidence,
    "Engine": schema.EngineConfig,
    "Model": schema.ModelConfig,
    "Keys that every experiment has": schema.Experiment,
} | {kind: module.Config for kind, module in experiments.KINDS.items()}


def rows(section: str) -> dict[str, tuple[str, Any]]:
    """Key → (type and unit, default) of the table under a heading."""
    (body,) = re.findall(rf"^##+ {re.escape(section)}\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    found = [match for line in body.splitlines() if (match := _ROW.match(line))]
    table = [line for line in body.splitlines() if line.startswith("| `")]
    assert len(found) == len(table), "a row of another form"
    assert all(match.group(4).strip() for match in found)
    return {match.group(1): (match.group(2), yaml.safe_load(match.group(3))) for match in found}


def defaults(cls: type) -> dict[str, Any]:
    """Key → default; of a kind, only its own keys."""
    common = {f.name for f in dataclasses.fields(schema.Experiment)}
    own = issubclass(cls, schema.Experiment) and cls is not schema.Experiment
    made = cls()
    values = {
        f.name: getattr(made, f.name) for f in dataclasses.fields(cls) if not (own and f.name in common)
    }
    return {name: {} if dataclasses.is_dataclass(value) else value for name, value in values.items()}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_explained_with_its_default(section: str) -> None:
    """The table names exactly the keys that the code knows, in its order, each with the default it has."""
    told = {key: value for key, (_, value) in rows(section).items()}
    assert list(told) == list(defaults(SECTIONS[section]))
    assert told == defaults(SECTIONS[section])


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_with_a_unit_tells_it(section: str) -> None:
    """A key that ends with a unit, or counts tokens, has that unit in its row."""
    for key, (kind, _) in rows(section).items():
        for ending, unit in (
            ("_s", ", s"),
            ("_ms", ", ms"),
            ("_minutes", ", min"),
            ("_rps", ", 1/s"),
            ("_tokens", ", tokens"),
        ):
            if key.endswith(ending) and key not in ("hits_per_group",):
                assert unit in kind, key


def test_kinds_with_repeats_and_starts_of_their_own_are_told() -> None:
    """Defaults of `repeats` and `starts` that differ from the common ones are in the common table's row."""
    (line,) = [line for line in TEXT.splitlines() if line.startswith("| `repeats`")]
    for kind, module in experiments.KINDS.items():
        config = module.Config()
        if config.repeats != 1:
            assert re.search(rf"`{kind}`[^;]*\b{config.repeats}\b", line), kind
        if config.starts != 1:
            assert f"`{kind}` has {config.starts} `starts`" in line


def yaml_examples() -> list[dict[str, Any]]:
    """Every document of every fenced YAML block."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return [document for block in blocks for document in yaml.safe_load_all(block)]


@pytest.mark.parametrize("example", yaml_examples(), ids=lambda example: ",".join(example))
def test_examples_are_possible(example: dict[str, Any], tmp_path: Path) -> None:
    """Every example, alone or laid over the smallest study, passes the checks that a run passes."""
    assert example
    whole = {**yaml_examples()[0], **example}
    if whole.get("engine") not in ("vllm-cpu",):
        whole.pop("server")
    engine = whole.get("engine")
    if isinstance(engine, dict) and not {"use", "python", "requirements"} & set(engine):
        # The smallest study's model is unpacked by the engine's interpreter, and this engine has none here.
        whole["models"] = [{"mine": {"source": "folder", "path": "/models/mine"}}]
    for entry in whole["models"]:
        # The one folder that only the reader has.
        if isinstance(entry, dict) and "mine" in entry:
            entry["mine"]["path"] = str(REPO / "config/models/qwen3-0.6b")
    loaded = load(whole, REPO)
    assert loaded.experiments
