"""A reference beside a study: every id has a matcher, values come from the nearest condition, shapes are judged."""

import pytest

import report_fixture
from servelab import field_notes, references
from servelab.claims import CALCULATED, MEASURED
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


def test_a_reference_is_a_name_and_not_a_path() -> None:
    """A name that would read elsewhere is refused; one that does not exist is said to be missing."""
    with pytest.raises(ValueError, match="file name"):
        references.load("../secrets")
    with pytest.raises(FileNotFoundError):
        references.load("nowhere")


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
