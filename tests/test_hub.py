"""Models from the hub, fetched from one on this machine: what is taken, what is said, and what is not fetched twice."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

from hub_stub import Hub, hub
from project_folder import MODEL, REPO, Project, small_study
from servelab import texts_source
from servelab.models import MARKER

pytestmark = pytest.mark.slow  # every fetch is a process of its own: a second or two each

FILES = {
    "config.json": json.dumps(MODEL).encode(),
    "model.safetensors": b"weights" * 1000,
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"can run code",
    "modeling.py": b"is code",
}
TAKEN = {"config.json", "model.safetensors", "tokenizer.json"}


@pytest.fixture
def served() -> Iterator[Hub]:
    with hub() as held:
        held.push(FILES)
        yield held


def environment(held: Hub, home: Path, **more: str) -> dict[str, str]:
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return {**kept, **quiet, "HF_ENDPOINT": held.url, "HF_HOME": str(home), **more}


@pytest.fixture
def reached(served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub, to which this process and what it starts will go."""
    for name, value in environment(served, tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    return served


def make(
    held: Hub,
    tmp_path: Path,
    output: str = "made",
    revision: str = "",
    path: str = "owner/some-model",
    **more: str,
) -> "subprocess.CompletedProcess[str]":
    model = json.dumps({"source": "hub", "path": path, "revision": revision})
    command = [sys.executable, str(REPO / "workflow/scripts/make_model.py"), "--model", model]
    command += ["--python", sys.executable, "--output", str(tmp_path / output)]
    return subprocess.run(
        command, env=environment(held, tmp_path / "home", **more), capture_output=True, text=True, timeout=120
    )


def files(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()} - {MARKER}


def test_only_what_cannot_run_code_is_taken_and_the_commit_is_noted(served: Hub, tmp_path: Path) -> None:
    """Weights, config and tokenizer lie there as they are on the hub; what could run code was never asked for."""
    done = make(served, tmp_path)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "made") == TAKEN
    assert all((tmp_path / "made" / name).read_bytes() == FILES[name] for name in TAKEN)
    commit = served.branches["main"]
    assert json.loads((tmp_path / "made" / MARKER).read_text())["revision"] == commit
    assert not [line for line in served.asked if line.endswith((".bin", ".py"))]


def test_a_revision_is_its_commit_and_a_moved_branch_another(served: Hub, tmp_path: Path) -> None:
    """A tag is fetched as it stands; the main branch as it is that day."""
    first = served.branches["main"]
    served.branches["v1"] = first
    second = served.push({**FILES, "tokenizer.json": b'{"newer": 1}'})
    for output, revision, commit in (("a", "v1", first), ("b", "", second), ("c", first, first)):
        assert make(served, tmp_path, output, revision).returncode == 0
        assert json.loads((tmp_path / output / MARKER).read_text())["revision"] == commit
    assert (tmp_path / "b/tokenizer.json").read_bytes() == b'{"newer": 1}'
    assert (tmp_path / "c/tokenizer.json").read_bytes() == b"{}"


def test_what_the_cache_has_is_not_fetched_again_and_does_without_a_network(
    served: Hub, tmp_path: Path
) -> None:
    """A second folder asks for no file's content; with the hub gone, or offline by order, the cache is enough."""
    assert make(served, tmp_path, "a").returncode == 0
    assert [line for line in served.asked if line.startswith("GET") and "/resolve/" in line]
    served.asked.clear()
    assert make(served, tmp_path, "b").returncode == 0
    assert not [line for line in served.asked if line.startswith("GET") and "/resolve/" in line]
    gone = Hub(url="http://127.0.0.1:9")
    for output, held, more in (("c", gone, {}), ("d", served, {"HF_HUB_OFFLINE": "1"})):
        done = make(held, tmp_path, output, **more)
        assert done.returncode == 0, done.stderr
        assert files(tmp_path / output) == TAKEN
        assert json.loads((tmp_path / output / MARKER).read_text())["revision"] == served.branches["main"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"path": "owner/another"}, "owner/another: the hub has nothing of that name"),
        ({"revision": "v9"}, "owner/some-model: the hub has no revision «v9» of it"),
        ({"gated": "1"}, "owner/some-model: its owner asks for an agreement"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "owner/some-model: the hub cannot be reached"),
        ({"HF_HUB_OFFLINE": "1"}, "owner/some-model: the hub cannot be reached"),
        ({"pickles": "1"}, "has no safetensors file"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(
    served: Hub, tmp_path: Path, wrong: dict[str, str], words: str
) -> None:
    """No traceback, nothing that looks like a model, and the next try begins anew."""
    wrong = dict(wrong)
    served.gated = bool(wrong.pop("gated", ""))
    if wrong.pop("pickles", ""):
        served.push({name: FILES[name] for name in ("config.json", "pytorch_model.bin")})
    done = make(served, tmp_path, **wrong)
    assert done.returncode == 1
    said = done.stderr.strip().splitlines()
    assert words in said[-1] and said[-1].startswith("[model] "), done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "made" / MARKER).exists()


def test_the_text_of_wikitext_comes_from_the_hub_and_then_from_its_cache(tmp_path: Path) -> None:
    """The parquet file of the fixed revision, as published; then nobody is asked; without either one line says so."""
    table = tmp_path / "made.parquet"
    rows = ["", " = Title = \n", " A sentence . \n"]
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), table)
    code = (
        "from servelab import texts_source as t\n"
        "try: print(t.load(t.WIKITEXT).content)\n"
        "except t.TextError as error: print(error)"
    )

    def load(held: Hub, home: str, **more: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment(held, tmp_path / home, **more),
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout

    with hub() as held:
        held.repository = f"datasets/{texts_source.WIKITEXT_REPOSITORY}"
        held.files[texts_source.WIKITEXT_REVISION] = {texts_source.WIKITEXT_FILE: table.read_bytes()}
        assert load(held, "home") == " = Title = \n\n\n A sentence . \n\n"
    gone = Hub(url="http://127.0.0.1:9")
    assert load(gone, "home") == " = Title = \n\n\n A sentence . \n\n"
    said = load(
        gone, "another home", HF_HUB_OFFLINE="1"
    )  # unreachable takes its library half a minute of tries
    assert (
        said.startswith("wikitext-2: Salesforce/wikitext: the hub cannot be reached")
        and said.count("\n") == 1
    )


def test_a_model_that_is_there_hides_nothing_that_is_not(reached: Hub, tmp_path: Path) -> None:
    """A later servelab makes models with another command: those that are there stay, and one run still does it all."""
    project = Project.make(tmp_path / "project", copied_workflow=True)
    project.study = {**small_study(), "models": [{"m": {"source": "hub", "path": "owner/some-model"}}]}
    assert project.measure().measured == 2
    rules = project.root / "workflow/rules/environment.smk"
    rules.write_text(rules.read_text().replace("make_model.py --model", "make_model.py  --model"))
    project.study["experiments"]["load_sweep"]["concurrency"] = [1, 2, 3]
    added = project.run()
    assert (added.returncode, added.measured) == (0, 1), added.output
    assert not [job for job in added.jobs if job.startswith("model_")]
    assert (project.root / "reports/small.html").is_file()


def test_points_are_judged_as_before_when_the_model_has_gone(reached: Hub, tmp_path: Path) -> None:
    """What the checks need of a model is kept with the results: weights may be deleted to make room."""
    project = Project.make(tmp_path / "project")
    model = {"source": "hub", "path": "owner/some-model", "vocab_size": 1000}
    project.study = {
        **small_study(),
        "models": [{"m": model}],
        "limits": {"flops": 10.0, "bytes_per_s": 10.0},
    }
    assert project.run().measured == 2
    points = project.tables() / "points.csv"
    before = points.read_text()
    assert "prefill_rate" in before
    shutil.rmtree(project.root / "resources/models")
    project.study["tolerance"] = 0.2
    again = project.run()
    assert (again.returncode, again.measured) == (0, 0), again.output
    assert "summarise" in again.jobs and points.read_text() == before


def test_a_study_measures_a_model_from_the_hub_and_names_its_commit(reached: Hub, tmp_path: Path) -> None:
    """From the id to the report; the second run has nothing to do although the branch moved; a tag is another model."""
    project = Project.make(tmp_path / "project")
    model = {"source": "hub", "path": "owner/some-model"}
    project.study = {**small_study(), "models": [{"m": model}]}
    first = project.run()
    assert first.returncode == 0, first.output
    assert (first.measured, first.failed) == (2, 0)
    commit = reached.branches["main"]
    assert [record.meta.provenance["model"] for record in project.records().values()] == [
        {"revision": commit}
    ] * 2
    info = json.loads((project.root / "results/small/tables/study.json").read_text())
    assert [each["fetched"] for each in info["models"]] == [[f"revision {commit}"]]
    assert f"revision {commit[:12]}" in (project.root / "reports/small.html").read_text()
    moved = reached.push({**FILES, "tokenizer.json": b'{"newer": 1}'})
    assert project.run().nothing_to_do
    reached.branches["v2"] = moved
    project.study["models"] = [{"m": {**model, "revision": "v2"}}]
    assert project.measure().measured == 2
    commits = [record.meta.provenance["model"]["revision"] for record in project.records().values()]
    assert sorted(commits) == sorted([commit, commit, moved, moved])
