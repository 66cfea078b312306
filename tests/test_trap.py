"""E11 from config to paper: one prompt for every request, prefix cache on, on a server that really caches it."""

import json

import pandas as pd
import pytest

from project_folder import MODEL, Project
from servelab import model_card

pytestmark = pytest.mark.slow

INPUT_TOKENS, MS_PER_TOKEN = 48, 1.0


def test_the_trap_is_invalid_for_independent_reasons_and_its_honest_twin_is_not(project: Project) -> None:
    """The hit counter, the FLOP/s and the load's own words convict the trap; the same load with its own prompts
    for every request runs at a third of the machine's limit and is not accused by any of the three.
    """
    # The fake server computes one token a millisecond, or finds all but the last block of 4 in its cache.
    card = model_card.from_config(MODEL)
    per_token = card.flops_per_prefill_token((INPUT_TOKENS + 1) / 2)
    assert isinstance(per_token, float)
    project.fake.update(prefill_us=MS_PER_TOKEN * 1e3, step_ms=0.5)
    load = {
        "kind": "load_sweep",
        "concurrency": [1],
        "input_tokens": [INPUT_TOKENS],
        "output_tokens": [2],
        "requests_min": 12,
        "warmup_requests": 1,
    }
    project.study["experiments"] = {"honest": load, "trap": {**load, "same_prompt": True}}
    project.study["limits"] = {"flops": 3 * per_token / (MS_PER_TOKEN * 1e-3), "bytes_per_s": 1e15}
    done = project.run()
    assert done.returncode == 0, done.output

    rows = pd.read_csv(project.tables() / "points.csv").set_index("experiment")
    accused = {
        name: {r["reason"] for r in json.loads(rows.loc[name, "reasons"]) if r["severity"] == "invalid"}
        for name in ("honest", "trap")
    }
    assert accused["trap"] >= {"same_prompt", "prefix_hits", "prefill_rate"}
    assert rows.loc["trap", "verdict"] == "invalid"
    assert not accused["honest"] & {"same_prompt", "prefix_hits", "prefill_rate"}

    analyses = json.loads((project.tables() / "analyses.json").read_text(encoding="utf-8"))
    assert "trap" in json.dumps(analyses)
    page = (project.root / "reports/small.html").read_text(encoding="utf-8")
    assert "FLOP/s" in page and "one prompt" in page.lower()
