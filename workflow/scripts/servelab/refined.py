"""Concurrencies that `snakemake refine` added to a study: results/<study>/refined.json, experiment → list.

They belong to the study from then on, as if they stood in its config; deleting the file takes them out again (the
points stay in the store).
"""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servelab import experiments
from servelab.config.errors import ConfigError, Problem
from servelab.records import write_atomically


def path(root: Path, study: str) -> Path:
    """Where a study's added concurrencies lie."""
    return root / "results" / study / "refined.json"


def read(root: Path, study: str) -> dict[str, list[int]]:
    """Experiment → concurrencies added so far. Raises ConfigError if the file is damaged."""
    file = path(root, study)
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        return {str(name): sorted({int(number) for number in numbers}) for name, numbers in value.items()}
    except (ValueError, TypeError, AttributeError) as error:
        allowed = "experiment → list of concurrencies; delete the file to leave them out"
        raise ConfigError([Problem(str(file), str(error), allowed)]) from error


def write(root: Path, study: str, added: Mapping[str, list[int]]) -> None:
    """Keep what was added."""
    text = json.dumps(
        {name: sorted(set(numbers)) for name, numbers in added.items()}, indent=1, sort_keys=True
    )
    write_atomically(path(root, study), (text + "\n").encode())


def apply(raw: Mapping[str, Any], added: Mapping[str, list[int]]) -> dict[str, Any]:
    """The config with the added concurrencies in the experiments' lists; experiments that are gone are left out.

    Where the config writes no list, the kind's default one is added to. `raw`: a config that has been checked.
    """
    made = copy.deepcopy(dict(raw))
    configured = made.get("experiments") or {}
    for name, numbers in added.items():
        if name not in configured:
            continue
        experiment = configured[name] or {}
        defaults = experiments.KINDS[str(experiment.get("kind") or name)].Config()
        if hasattr(defaults, "concurrency"):
            listed = experiment.get("concurrency", defaults.concurrency)
            listed = listed if isinstance(listed, list) else [listed]
            configured[name] = {**experiment, "concurrency": sorted({*map(int, listed), *numbers})}
    return made
