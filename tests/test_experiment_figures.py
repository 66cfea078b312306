"""Figures of the experiments: each kind draws what its tables hold, wide and narrow, in every language."""

import importlib
from collections.abc import Callable

import pandas as pd
import pytest

import test_experiment_chunked_prefill as chunks
import test_experiment_kv_capacity as capacity
import test_experiment_options as options
import test_experiment_perplexity as quality
import test_experiment_preemption as preempted
import test_experiment_prefix_cache as prefixes
import test_experiment_startup as starts
from made_study import study
from servelab import experiments
from servelab.claims import Analysis
from servelab.figures.dressing import finished
from servelab.figures.series import without_bare_tails
from servelab.figures.style import Style
from servelab.records import PointRecord
from servelab.texts import LANGUAGES

pytestmark = pytest.mark.slow  # figures are drawn as pictures

KV_DTYPE = options.CONFIG


def _caps() -> list[PointRecord]:
    return [
        options.load({"max_num_seqs": cap}, f"s{cap}", gap_s=0.08 / cap, gauges=(cap, 8 - cap))
        for cap in (4, 8)
    ]


def _dtypes() -> list[PointRecord]:
    return [
        options.load({"kv_cache_dtype": dtype}, dtype, session={"kv_cache_tokens": tokens}, **shape)
        for dtype, tokens in (("auto", 4096), ("fp8", 8192))
        for shape in ({"concurrency": 1}, {"input_tokens": 1024})
    ]


def _eager() -> list[PointRecord]:
    return [
        options.load({"enforce_eager": eager}, str(eager), session={"log": {"graphs": not eager}})
        for eager in (False, True)
    ]


def _perplexity() -> list[PointRecord]:
    return [
        quality.point("auto", 1, quality.LOSSES),
        quality.point("fp8", 1, [loss + 0.01 for loss in quality.LOSSES]),
    ]


MADE: dict[str, tuple[Callable[[], list[PointRecord]], object, set[str]]] = {
    "chunked_prefill": (chunks.everything, chunks.CONFIG, {"3500", "measured"}),
    "kv_capacity": (capacity.notes, None, {"22048", "41920"}),
    "preemption": (lambda: [preempted.cell(4, 0, 0), preempted.cell(16, 7, 0)], preempted.CONFIG, {"7"}),
    "max_num_seqs": (_caps, None, {"Running"}),
    "kv_dtype": (_dtypes, KV_DTYPE, {"fp8"}),
    "cuda_graphs": (_eager, None, {"graphs", "eager"}),
    "prefix_cache": (prefixes.everything, prefixes.CONFIG, {"hit", "miss"}),
    "startup": (
        lambda: [starts.start("first", False), starts.start("restart", False, compile=3.0)],
        None,
        {"compilation"},
    ),
    "perplexity": (_perplexity, quality.CONFIG, {"fp8"}),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_kind_draws_its_tables(kind: str) -> None:
    """One figure that holds the table's settings, with caption and alt text, in every size and language."""
    records, config, words = MADE[kind]
    module = experiments.KINDS[kind]
    analysis = module.analyse(study(kind, records(), {"tiny": capacity.QWEN}), "e", config or module.Config())
    draw = importlib.import_module(f"servelab.figures.{kind}").figures
    for language in LANGUAGES:
        for narrow in (False, True):
            style = Style(language, narrow=narrow)
            figures = draw(analysis, style)
            assert len(figures) == 1
            specification = str(finished(figures[0].chart))
            assert figures[0].table in {table.id for table in analysis.tables}
            assert style.text(f"figures.{figures[0].template}.caption") and style.text(
                f"figures.{figures[0].template}.alt"
            )
            if language == "en":
                assert [word for word in words if word not in specification] == []


@pytest.mark.parametrize("kind", MADE)
def test_nothing_measured_draws_nothing(kind: str) -> None:
    """An analysis without tables has no figure, and no empty frame."""
    draw = importlib.import_module(f"servelab.figures.{kind}").figures
    assert draw(Analysis(kind, "e"), Style("en")) == []


def test_no_p99_is_drawn_that_the_table_does_not_quote() -> None:
    """367 values are too few for the interval of a p99, 368 are enough; other percentiles stay."""
    points = pd.DataFrame(
        {"ttft_n": [367, 368], "ttft_p99_ms": [9.0, 9.0], "ttft_p95_ms": [8.0, 8.0], "itl_n": [None, 400]}
    )
    shown = without_bare_tails(points)
    assert shown["ttft_p99_ms"].isna().tolist() == [True, False]
    assert shown["ttft_p95_ms"].tolist() == [8.0, 8.0]
