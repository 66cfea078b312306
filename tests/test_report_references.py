"""A reference beside a study: every id has a matcher, values come from the nearest condition, shapes are judged."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import report_fixture
from servelab import field_notes, reference_files, references
from servelab.claims import CALCULATED, MEASURED, Analysis, Table
from servelab.references import Counterpart, Reference
from servelab.report import back
from servelab.report.words import Words

NOTES = references.load("field-notes-2026-10-07")
POINTS = report_fixture.points()


def test_every_id_of_the_notes_has_a_matcher() -> None:
    """The list of matchers and the reference's ids are the same."""
    assert [row.id for row in NOTES if row.id not in field_notes.MATCHERS] == []
    assert sorted(field_notes.MATCHERS) == sorted(row.id for row in NOTES)


@pytest.mark.parametrize("id_", sorted(field_notes.MATCHERS))
def test_a_matcher_answers_or_says_nothing(id_: str) -> None:
    """On a study with a sweep and on one without any point, a matcher gives a value with its condition, or None."""
    for points in (POINTS, POINTS.iloc[0:0]):
        found = field_notes.counterpart(id_, report_fixture.analyses(), points)
        assert found is None or (found.value is not None and found.condition and found.n > 0)
        assert found is None or len(points)


def test_values_come_from_the_nearest_condition() -> None:
    """L03 asks for concurrency 32, input 512: the sweep's 24 and 128 are the nearest, and the counterpart says so."""
    found = field_notes.counterpart("L03", [], POINTS)
    rows = POINTS[
        (POINTS["kind"] == "load_sweep") & (POINTS["concurrency"] == 24) & (POINTS["status"] == "ok")
    ]
    assert found is not None
    assert found.value == pytest.approx(rows["output_throughput_tok_s"].mean())
    assert found.status == MEASURED
    assert "concurrency=24 input=128" in found.condition


def test_invalid_points_are_no_counterpart() -> None:
    """A value that may not be believed is not set beside the reference."""
    invalid = POINTS.assign(verdict="invalid")
    assert field_notes.counterpart("L01", [], invalid) is None


def test_a_ratio_needs_two_conditions() -> None:
    """Where the study has one concurrency only, a ratio of two is not measured."""
    both = field_notes.counterpart("L08", [], POINTS)
    one = field_notes.counterpart("L08", [], POINTS[POINTS["concurrency"] == 4])
    assert both is not None
    assert both.status == CALCULATED
    assert one is None


def one_request_at_a_time(**columns: object) -> pd.DataFrame:
    """Three valid points at concurrency 1, these columns changed."""
    return POINTS[(POINTS["kind"] == "load_sweep") & (POINTS["concurrency"] == 1)].assign(**columns)


def graphs(**tok_s: float) -> pd.DataFrame:
    """Points of cuda_graphs on several models: name → throughput."""
    parts = [
        one_request_at_a_time(kind="cuda_graphs", model=model, output_throughput_tok_s=value)
        for model, value in tok_s.items()
    ]
    return pd.concat(parts, ignore_index=True)


BOTH = {"qwen3-1.7b": 66.0, "qwen3-0.6b": 168.0}


def test_a_model_of_the_reference_is_compared_with_the_same_model_of_the_study() -> None:
    """G01 is of Qwen3-1.7B, G03 of Qwen3-0.6B: each has its own model's value, and the condition names it."""
    points = graphs(**BOTH)
    for id_, model, value in (("G01", "qwen3-1.7b", 66.0), ("G03", "qwen3-0.6b", 168.0)):
        found = field_notes.counterpart(id_, [], points)
        assert found is not None
        assert (found.value, found.n) == (value, 3)
        assert found.condition.startswith(f"model={model} ")
        assert back.study_value(id_, [], points) == value
    view = back.reference_view("notes", NOTES, [], points, Words.of("en"))
    shown = {row.id: row for _, rows in view.groups for row in rows}
    assert (shown["G01"].ours, shown["G03"].ours) == ("66 tok/s", "168 tok/s")


def test_a_model_that_the_study_has_not_has_no_counterpart() -> None:
    """Two other models: nothing is set beside G03; of a study of one model its own name does not matter."""
    strangers = graphs(**{"qwen3-1.7b": 66.0, "llama-3b": 90.0})
    assert field_notes.counterpart("G03", [], strangers) is None
    assert "G03" in back.reference_view("notes", NOTES, [], strangers, Words.of("en")).missing
    alone = field_notes.counterpart("G03", [], graphs(**{"llama-3b": 90.0}))
    assert alone is not None and alone.value == 90.0 and "model" not in alone.condition


def test_tables_are_read_for_the_references_model() -> None:
    """X01 is of Qwen3-1.7B: another model's table that comes first is passed over."""
    analyses = [misses("qwen3-0.6b", 100.0), misses("qwen3-1.7b", 390.0)]
    found = field_notes.counterpart("X01", analyses, graphs(**BOTH))
    assert found is not None
    assert (found.value, found.n) == (390.0, 1)


def misses(model: str, ttft_ms: float) -> Analysis:
    """A prefix_cache experiment on one model."""
    row = {"model": model, "enable_prefix_caching": True, "request": "miss", "ttft_p50_ms": ttft_ms}
    columns = {"ttft_p50_ms": ("ms", MEASURED)}
    table = Table(model, pd.DataFrame([row]), columns, model, "prefix_cache_requests")
    return Analysis("prefix_cache", model, tables=[table])


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (("qwen3-0.6b", "qwen3-1.7b"), "qwen3-1.7b"),
        (("Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B"), "Qwen/Qwen3-1.7B"),
        (("qwen3-1.7b-fp8", "qwen3-1.7b"), "qwen3-1.7b"),
        (("smollm2-1.7b", "qwen3-1.7b-base"), "qwen3-1.7b-base"),
        (("smollm2-1.7b", "smollm2-135m"), "smollm2-1.7b"),
        (("smollm2-1.7b", "other-1.7b"), None),
        (("llama-11.7b", "llama-7b"), None),
    ],
)
def test_models_are_told_by_name_or_size(models: tuple[str, ...], expected: str | None) -> None:
    """The reference's Qwen3-1.7B is the model of that name, else the only one that begins so or has its size."""
    assert references.model_like("Qwen3-1.7B", models) == expected


def test_first_starts_and_restarts_are_not_averaged() -> None:
    """G07 does not say which start it is: a range without a middle; a reference that says has that start's value."""
    both = one_request_at_a_time(kind="startup", workload_kind="boot").head(2)
    points = both.assign(boot=["first", "restart"], ready_s=[100.0, 50.0])
    silent = next(row for row in NOTES if row.id == "G07")
    found = field_notes.beside(silent, [], points)
    assert found is not None
    assert (found.value, found.low, found.high) == (None, 50.0, 100.0)
    assert "boot=first…restart" in found.condition
    for words, seconds in (("graphs, first start", 100.0), ("graphs, restart", 50.0)):
        said = field_notes.beside(replace(silent, condition=words), [], points)
        assert said is not None and said.value == seconds


def test_evidence_on_a_column_must_name_one_of_several_models() -> None:
    """A middle over two models' points is no value of the study; with the model named it is."""
    metric = "output_throughput_tok_s where kind=cuda_graphs"
    assert back.study_value(metric, [], graphs(**BOTH)) is None
    assert back.study_value(f"{metric}, model=qwen3-0.6b", [], graphs(**BOTH)) == 168.0


def reference(value: float, unit: str = "x", metric: str = "output_throughput_ratio") -> Reference:
    return Reference("L08", "load_sweep", "m", "c", metric, unit, value, None, None, MEASURED, "")


@pytest.mark.parametrize(
    ("theirs", "unit", "ours", "expected"),
    [(1.37, "x", 2.8, "same"), (1.37, "x", 0.8, "opposite"), (1.37, "x", 1.01, "flat"), (1.0, "x", 1.01, "same"),
     (-23.0, "%", -5.0, "same"), (-23.0, "%", 5.0, "opposite"), (-23.0, "%", 1.0, "flat")],
)  # fmt: skip
def test_changes_are_compared_by_direction(theirs: float, unit: str, ours: float, expected: str) -> None:
    """A ratio or a change agrees in direction, goes the other way, or is none here; sizes are not judged."""
    metric = "output_throughput_ratio" if unit == "x" else "output_throughput_change"
    assert back.direction(reference(theirs, unit, metric), Counterpart(ours, "here")) == expected


def test_absolute_values_are_never_judged() -> None:
    """Milliseconds of another machine are set side by side and nothing is concluded."""
    assert back.direction(reference(666.0, "ms", "ttft_p50"), Counterpart(5.0, "here")) == "absolute"


def test_the_whole_reference_is_in_the_report_with_what_is_missing() -> None:
    """Each id stands in the view once; those without a counterpart are listed."""
    view = back.reference_view("notes", NOTES, report_fixture.analyses(), POINTS, Words.of("en"))
    shown = [row.id for _, rows in view.groups for row in rows]
    assert shown == [row.id for row in NOTES]
    assert view.found + len(view.missing) == view.total == len(NOTES)
    assert "H01" in view.missing
    parts = {there: [row.id for _, rows in view.rows(there) for row in rows] for there in (True, False)}
    assert parts[False] == view.missing and len(parts[True]) == view.found > 0
    assert sorted(parts[True] + parts[False]) == sorted(shown)


def test_a_reference_is_a_name_and_not_a_path() -> None:
    """A name that would read elsewhere is refused; one that does not exist is said to be missing."""
    with pytest.raises(ValueError, match="file name"):
        references.load("../secrets")
    with pytest.raises(FileNotFoundError):
        references.load("nowhere")


def test_a_reference_is_looked_for_in_the_archive_then_among_files_then_among_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there first is taken; what is nowhere is None, and so is a name that leads elsewhere."""
    monkeypatch.setattr(reference_files, "FOLDER", tmp_path / "config/references")
    tables = tmp_path / "results/small/tables"
    assert reference_files.find("earlier", tables) is None
    assert reference_files.watched("earlier", "small", tmp_path) == []
    other = tmp_path / "results/earlier/tables"
    places = [other, tmp_path / "config/references/earlier.csv", tables / "reference/earlier"]
    for file in (other / "points.arrow", places[1], places[2] / "points.arrow"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        assert reference_files.find("earlier", tables) in places
        assert reference_files.find("earlier", tables) == places[0]
        places = places[1:] or places
    for name in ("", "..", "../earlier", "."):
        assert reference_files.find(name, tables) is None


def test_what_the_paper_watches_of_a_reference(tmp_path: Path) -> None:
    """Of another study what is compared, of a file itself; nothing of a study that is its own reference."""
    tables = tmp_path / "results/earlier/tables"
    tables.mkdir(parents=True)
    for name in ("points.arrow", "study.json", "points.csv"):
        (tables / name).touch()
    watched = reference_files.watched("earlier", "small", tmp_path)
    assert watched == ["results/earlier/tables/points.arrow", "results/earlier/tables/study.json"]
    assert reference_files.watched("earlier", "earlier", tmp_path) == []
    default = reference_files.name_of({"report": {"title": "x"}})
    file = "config/references/field-notes-2026-10-07.csv"
    root = reference_files.FOLDER.parents[1]
    assert reference_files.watched(default, "small", root) == [file]
    assert reference_files.watched(default, "small", tmp_path) == [str(root / file)]


def test_external_evidence_is_agreed_with_only_within_its_tolerance() -> None:
    """A claim's value beside the study's: agrees, differs, or is not comparable where the study has none."""
    claims = [
        {"source": s, "metric": metric, "value": value, "tolerance": 0.2}
        for s, metric, value in (
            ("near", "ttft_p50_ms where concurrency=1", 200.0),
            ("far", "ttft_p50_ms where concurrency=1", 20.0),
            ("none", "ttft_p50_ms where concurrency=7", 200.0),
            ("unknown", "no_such_column", 1.0),
            ("by id", "L01", 4.4),
        )
    ]
    rows = back.evidence_rows({"report": {"external_evidence": claims}}, [], POINTS, Words.of("en"))
    assert [row.verdict for row in rows] == [
        "agrees",
        "differs",
        "not_comparable",
        "not_comparable",
        "agrees",
    ]
