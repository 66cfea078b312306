"""`snakemake --report`: Snakemake's own page about a finished study names the paper, its figures and tables."""

import pytest

from project_folder import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_snakemake_report_has_the_paper_its_figures_and_tables_with_captions(project: Project) -> None:
    """Every result is in the page with the caption that its rule names."""
    assert project.run().returncode == 0
    reported = project.run_as_is("all", "--report", "page.html")
    assert reported.returncode == 0, reported.output
    page = (project.root / "page.html").read_text(encoding="utf-8")
    for result in ("small.html", "points.csv", "validity-points.svg"):
        assert f"Adding {result} " in reported.output, reported.output
        assert result in page
    for words in (
        "real LLM servers",
        "The paper of the study",
        "One row for each point",
        "Figures and tables of the paper",
    ):
        assert words in page, words
