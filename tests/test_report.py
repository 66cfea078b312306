"""The paper: whole, harmless, self-contained, the same numbers in both languages, and honest about gaps."""

import base64
import hashlib
import html
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

import report_fixture
from servelab import cite
from servelab.claims import MEASURED, Finding, Table
from servelab.report import build, front
from servelab.report.cells import figure, figure_digits, table_view
from servelab.report.sections import Sections, heaviest, open_ends
from servelab.report.tables import write_analyses, write_loads, write_points
from servelab.report.words import Words, rich
from servelab.summary import COLUMNS

pytestmark = pytest.mark.slow  # every paper is drawn anew: seconds each

SCRIPT = Path(__file__).parents[1] / "workflow/scripts/report.py"
MEGABYTE = 1_000_000


@cache
def paper(language: str = "en") -> str:
    report = build.paper(
        report_fixture.analyses(),
        report_fixture.info(),
        report_fixture.points(),
        report_fixture.words(language),
    )
    assert report.missing_texts == ()
    return report.html


class Elements(HTMLParser):
    """Every start tag with its attributes, and the words outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._quiet = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._quiet += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._quiet -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._quiet:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@cache
def elements(language: str = "en") -> Elements:
    return Elements(paper(language))


def test_every_part_of_a_paper_is_there() -> None:
    """Abstract, questions, environment, a section an experiment, repeatability, validity, reference, answers,
    evidence, what was not measured, versions, provenance, how to cite: each a section with a heading."""
    ids = [attrs.get("id") for tag, attrs in elements().tags if tag == "section"]
    assert ids == [
        "abstract", "questions", "environment", "s-load-sweep", "s-kv-dtype", "s-repeatability", "s-validity",
        "reference", "answers", "evidence", "missing", "versions", "provenance", "cite",
    ]  # fmt: skip


def test_ids_are_unique_and_links_lead_to_them() -> None:
    """No two elements share an id; every link within the page has its target."""
    ids = [attrs["id"] for _, attrs in elements().tags if attrs.get("id")]
    assert len(ids) == len(set(ids))
    links = [attrs["href"] or "" for tag, attrs in elements().tags if tag == "a"]
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)


def test_the_abstract_says_the_heaviest_findings_and_how_sure() -> None:
    """The three heaviest findings of different groups stand first, with status and table."""
    abstract = paper().split('<section id="abstract"', 1)[1].split("</section>", 1)[0]
    said = Elements(abstract).text
    assert said.index("stopped following concurrency at 12 (10–14)") < said.index("12.5, lies inside")
    assert "supports the reference" in said
    assert "33 of 36 points may be believed" in said
    assert 'href="#t-fixture_sweep"' in abstract


def test_findings_of_one_group_are_said_once_in_the_abstract() -> None:
    """Five settings that say the same thing do not fill the abstract."""
    analyses = report_fixture.analyses()
    analyses[0].findings[:0] = [Finding("fixture_knee", {}, weight=95, group="one") for _ in range(5)]
    assert [f.group for f in heaviest(analyses)].count("one") == 1
    assert len(heaviest(analyses)) == 3


def test_hostile_strings_are_text() -> None:
    """What a server, a model or a config says is shown and never run, in text, attributes, scripts and code."""
    hostile = report_fixture.HOSTILE
    shown = [words for words in elements().words if "alert(" in words]
    assert len(shown) >= 4
    assert "<script>alert" not in paper()
    assert html.escape(hostile, quote=False)[:20] in paper()
    assert "{{ 7*7 }}" in elements().text
    scripts = [attrs for tag, attrs in elements().tags if tag == "script"]
    assert all(
        attrs.get("type") in (None, "application/json", "application/octet-stream") for attrs in scripts
    )
    assert sum(attrs.get("type") is None for attrs in scripts) == 1


def test_the_policy_lets_only_the_papers_own_script_run() -> None:
    """The security policy names the page's script by its hash and lets nothing be fetched."""
    policy = next(
        a["content"] for t, a in elements().tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    script = paper().rsplit("<script>", 1)[1].split("</script>", 1)[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]


def test_nothing_outside_is_asked_for() -> None:
    """No element loads anything from an address; fonts and figures are in the file."""
    loading = [
        value
        for _, attrs in elements().tags
        for name, value in attrs.items()
        if name in ("src", "srcset", "data", "poster", "action", "href") and value
    ]
    assert not [value for value in loading if re.match(r"(https?:)?//", value)]
    assert not re.findall(r"url\((?!data:|#)", paper().split("</style>", 1)[0])


def test_it_is_small() -> None:
    """At most 3 MB for an ordinary study and 10 MB for a thousand points."""
    assert len(paper().encode()) < 3 * MEGABYTE
    large = build.paper(
        report_fixture.analyses(),
        report_fixture.info(),
        report_fixture.points(many=1000),
        report_fixture.words("en"),
    )
    assert len(large.html.encode()) < 10 * MEGABYTE


def test_a_value_has_its_interval_its_unit_and_its_status() -> None:
    """A cell shows value and interval, the head its unit, calculated columns are marked, gaps are said."""
    table = report_fixture.analyses()[0].tables[0]
    view = table_view(table, report_fixture.words("en"), 1)
    heads = {head.name: head for head in view.heads}
    assert heads["Throughput"].unit == "tok/s"
    assert table_view(report_fixture.knee_table(), report_fixture.words("en"), 1).heads[-1].calculated
    assert ("Capacity", "12.5") in view.constant
    assert not heads["TTFT p50"].calculated
    cells = dict(zip(heads, view.rows[-1], strict=True))
    assert cells["Throughput"].interval.count("–") == 1
    assert cells["ITL max"].missing
    assert cells["ITL max"].text == "not measured"
    assert "not measured" in elements().text


def test_numbers_are_the_same_in_both_languages() -> None:
    """English and Korean differ in words, not in figures, intervals, units or statuses."""
    assert len(re.findall("[가-힣]", elements("ko").text)) > 1000
    cells = {
        language: re.findall(r'<td class="num">(.*?)</td>', paper(language)) for language in ("en", "ko")
    }
    numbers = {
        language: [re.findall(r"[\d.,]+", cell) for cell in found] for language, found in cells.items()
    }
    assert len(numbers["en"]) > 60
    assert numbers["en"] == numbers["ko"]
    assert elements("ko").tags[0][0] == "html"
    assert elements("ko").tags[0][1]["lang"] == "ko"


def test_what_was_not_measured_is_said_with_its_reason() -> None:
    """An experiment without data keeps its section, says why, and stands in the list of what is missing."""
    section = Elements(paper().split('<section id="s-kv-dtype"', 1)[1].split("</section>", 1)[0]).text
    assert "Not measured in this study: the engine" in section
    missing = Elements(paper().split('<section id="missing"', 1)[1].split("</section>", 1)[0]).text
    assert "cannot quantise the KV cache" in missing
    assert "the server died during the measurement" in missing


def test_doubted_points_are_named_with_cause_and_remedy() -> None:
    """The section on validity gives each reason in words, with what to do and which points."""
    section = Elements(paper().split('<section id="s-validity"', 1)[1].split("</section>", 1)[0]).text
    assert "640 of 1,024 prompt tokens (62.50" in section
    assert "start a fresh server" in section
    assert "c2-i128-o32-r2" in section


def test_questions_are_answered_with_the_studys_numbers() -> None:
    """The capacity formula is filled with this study's tokens; what was not measured is not answered."""
    answers = Elements(paper().split('<section id="answers"', 1)[1].split("</section>", 1)[0]).text
    assert "3,200 ÷ (128 + 32) = 20.0" in answers
    assert "This study did not measure it." in answers


def test_figures_have_captions_descriptions_and_files() -> None:
    """Each figure is an image with a description, a caption with its number, and links to SVG and PNG."""
    drawings = [attrs for tag, attrs in elements().tags if tag == "div" and attrs.get("role") == "img"]
    assert len(drawings) >= 4
    assert all(len(attrs.get("aria-label") or "") > 60 for attrs in drawings)
    captions = re.findall(r"<figcaption>.*?Figure (\d+)", paper())
    assert captions == [str(n) for n in range(1, len(drawings) + 1)]
    assert paper().count('data-as="svg"') == paper().count('data-as="png"') == len(drawings)


def test_secrets_stay_hidden() -> None:
    """A key on a server's command line does not reach the report."""
    assert "--api-key" in paper()
    assert "secret" not in Elements(
        paper().split('<section id="environment"', 1)[1].split("</section>")[0]
    ).text.replace("secrets hidden", "")


def test_a_missing_text_is_shown_and_counted() -> None:
    """A finding whose words are missing stands in the report by its id, and the builder says so."""
    analyses = report_fixture.analyses()
    analyses[0].findings.append(Finding("no_such_text", {}))
    report = build.paper(analyses, report_fixture.info(), report_fixture.points(), report_fixture.words("en"))
    assert "findings.no_such_text" in report.missing_texts
    assert "«findings.no_such_text»" in report.html


def test_a_study_with_nothing_still_makes_a_paper() -> None:
    """No analyses, no points, no info: the paper says so everywhere and nothing breaks."""
    report = build.paper([], {}, report_fixture.points().iloc[0:0], Words.of("en"))
    assert report.missing_texts == ()
    assert "Nothing was recorded about the machine" in report.html


@pytest.mark.parametrize(
    ("value", "unit", "digits", "shown"),
    [(0.0, "", 3, "0"), (1234567.0, "bytes", 3, "1,234,567"), (12.3456, "ms", 3, "12.3"), (1234.56, "ms", 3, "1,235"),
     (-0.5, "", 3, "−0.500"), (float("inf"), "", 3, "∞"), (0.000123456, "", 3, "0.000123")],
)  # fmt: skip
def test_numbers_are_written_for_people(value: float, unit: str, digits: int, shown: str) -> None:
    """Whole numbers whole, others to their digits, never an exponent, a true minus."""
    assert figure(value, unit, digits) == shown


def test_a_column_has_digits_enough_to_tell_its_values_apart() -> None:
    """Values that lie close together are written with more digits."""
    assert figure_digits([100.1, 104.0], "ms") == 4
    assert figure_digits([100.1, 100.2], "ms") == 5
    assert figure_digits([10.0, 20.0], "ms") == 3


def test_code_in_texts_is_code_and_units_stay_with_their_numbers() -> None:
    """Backticks become code, what they hold is escaped; a number never leaves its unit at a line's end."""
    assert str(rich("use `a<b` now")) == "use <code>a&lt;b</code> now"
    assert str(rich("<i>3.4 % of 5 ms</i>")) == "&lt;i&gt;3.4\u00a0% of 5\u00a0ms&lt;/i&gt;"


def test_what_was_fetched_stands_beside_a_model_if_servelab_fetched_it() -> None:
    """Two commits under one name are both told; a model that was there already has no such column."""
    table = front.models_table(report_fixture.info())
    assert table is not None
    assert table.frame["fetched"].tolist() == ["revision 0123456789ab, revision fedcba987654"]
    own = front.models_table(
        report_fixture.info(models=[{"name": "own", "path": "/models/own", "fingerprint": "ab12"}])
    )
    assert own is not None
    assert "fetched" not in own.frame


def test_the_citation_can_be_read_by_machines() -> None:
    """The CFF is valid YAML of version 1.2.0 and the BibTeX entry closes all it opens."""
    versions = {"servelab": "0.1.0", "server": "0.31.0"}
    cff = yaml.safe_load(cite.cff("my study", "A & B", ["A. Person"], "2026-11-29", versions))
    assert (cff["cff-version"], cff["type"], str(cff["date-released"])) == ("1.2.0", "dataset", "2026-11-29")
    assert cff["authors"] == [{"name": "A. Person"}]
    entry = cite.bibtex("my study", "A & B_c", ["A. Person", "B. Person"], "2026-11-29", versions)
    assert entry.count("{") == entry.count("}")
    assert r"A \& B\_c" in entry
    assert "A. Person and B. Person" in entry


def test_constant_settings_are_said_below_the_table() -> None:
    """A setting that is the same in every row is no column, and a quantity nowhere measured is named."""
    import pandas as pd

    frame = pd.DataFrame(
        {"model": ["m", "m"], "concurrency": [1, 2], "ttft_p50_ms": [1.0, 2.0], "e2e_p50_ms": [None] * 2}
    )
    table = Table("points", frame, {"ttft_p50_ms": ("ms", MEASURED), "e2e_p50_ms": ("ms", MEASURED)})
    view = table_view(table, Words.of("en"), 1)
    assert [head.name for head in view.heads] == ["Concurrency", "TTFT p50"]
    assert view.constant == [("Model", "m")]
    assert view.empty == ["E2E p50"]


def test_an_embedded_csv_is_the_table() -> None:
    """The CSV in the page is the whole table, so that the page can travel alone."""
    maker = Sections(report_fixture.words("en"), report_fixture.points())
    view = maker.table(report_fixture.analyses()[0].tables[0])
    data = base64.b64decode(view.csv_data.split(",", 1)[1]).decode()
    assert data.splitlines()[0].startswith("concurrency,output_throughput_tok_s,")
    assert len(data.splitlines()) == len(report_fixture.CONCURRENCY) + 1


def test_the_command_writes_the_paper_and_its_files(tmp_path: Path) -> None:
    """report.py reads a tables folder and writes HTML, SVG, PNG and CSV; a folder that is none is one clear line."""
    tables = tmp_path / "results/fixture/tables"
    analyses = report_fixture.analyses()
    write_analyses(tables, analyses, report_fixture.info())
    write_points(tables, report_fixture.points(), COLUMNS)
    out = tmp_path / "reports/fixture.html"
    command = [sys.executable, str(SCRIPT), "--tables", str(tables), "--output", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size > 100_000
    kinds = {file.suffix for file in (tmp_path / "reports/fixture").iterdir()}
    assert {".svg", ".png", ".csv"} <= kinds
    assert "findings.fixture_knee" in done.stderr  # the made-up study's own texts are in no catalogue
    command[3] = str(tmp_path / "nowhere")
    failed = subprocess.run(command, capture_output=True, text=True)
    assert failed.returncode == 1
    assert "analyses.json" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_another_study_can_be_the_reference(tmp_path: Path) -> None:
    """A study named as reference is compared load by load instead of a table of notes."""
    for name, reference in (("earlier", ""), ("fixture", "earlier")):
        info = dict(report_fixture.info(study=name))
        info["config"] = {**info["config"], "report": {"reference": reference}}
        tables = tmp_path / f"results/{name}/tables"
        write_analyses(tables, [], info)
        write_points(tables, report_fixture.points(), COLUMNS)
        write_loads(tables, report_fixture.loads(report_fixture.points()))
    report = build.build(
        tmp_path / "results/fixture/tables", tmp_path / "r/fixture.html", tmp_path / "r/fixture"
    )
    assert report.missing_texts == ()
    section = Elements(report.html.split('<section id="reference"', 1)[1].split("</section>", 1)[0]).text
    assert "no difference seen" in section
    assert (tmp_path / "r/fixture/compare-ratios.png").exists()


def test_the_reference_that_an_archive_brought_comes_first(tmp_path: Path) -> None:
    """A table of the default reference's name beside the study's tables is what the paper shows."""
    tables = tmp_path / "results/fixture/tables"
    write_analyses(tables, [], report_fixture.info())
    write_points(tables, report_fixture.points(), COLUMNS)
    brought = tables / "reference/field-notes-2026-10-07.csv"
    brought.parent.mkdir()
    head = "id,experiment,model,condition,metric,unit,value,low,high,status,note"
    brought.write_text(
        f"{head}\nL01,load_sweep,m,c,output_throughput,tok/s,98765,,,measured,\n", encoding="utf-8"
    )
    report = build.build(tables, tmp_path / "r/fixture.html", tmp_path / "r/fixture")
    section = report.html.split('<section id="reference"', 1)[1].split("</section>", 1)[0]
    assert "of 1 ids have a counterpart" in Elements(section).text


def test_figures_and_tables_of_an_earlier_paper_go(tmp_path: Path) -> None:
    """What an experiment left in the paper's folder goes when the experiment does; a folder of one's own is kept."""
    tables = tmp_path / "results/fixture/tables"
    write_analyses(tables, report_fixture.analyses(), report_fixture.info())
    write_points(tables, report_fixture.points(), COLUMNS)
    out, own = tmp_path / "r/fixture.html", tmp_path / "own"
    build.build(tables, out, tmp_path / "r/fixture")
    (tmp_path / "r/fixture/notes.txt").touch()
    own.mkdir()
    (own / "drawn.svg").touch()
    earlier = {file.name for file in (tmp_path / "r/fixture").iterdir()}
    write_analyses(tables, [], report_fixture.info())
    build.build(tables, out, tmp_path / "r/fixture")
    left = {file.name for file in (tmp_path / "r/fixture").iterdir()}
    assert left < earlier
    assert {"points.csv", "notes.txt"} <= left and "fixture_sweep.csv" in earlier - left
    assert {".svg", ".png"} <= {Path(name).suffix for name in earlier - left}
    build.build(tables, out, own)
    assert (own / "drawn.svg").exists()


def test_an_interval_without_an_end_is_open() -> None:
    """A missing end of an interval in a sentence is written as a bound, not as «not measured»."""
    gap = "not measured"
    assert open_ends("knee (18–not measured).", gap) == "knee (≥ 18)."
    assert open_ends("knee (not measured–14).", gap) == "knee (≤ 14)."
    assert open_ends("knee (not measured–not measured).", gap) == "knee."
    assert open_ends("knee (10–14), TTFT not measured.", gap) == "knee (10–14), TTFT not measured."
