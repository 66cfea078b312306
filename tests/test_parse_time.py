"""What Snakemake compares between runs: digests of code, paths, the text of each start."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from project_folder import REPO, Project, small_study
from servelab import parse_time
from servelab.records import encode_point, write_atomically
from test_records import record

SCRIPTS = REPO / "workflow/scripts"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    shutil.copytree(SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return folder


def digest(folder: Path, script: str = "summarise.py") -> str:
    parse_time._compiled.cache_clear()
    parse_time._data.cache_clear()
    return parse_time.code_digest(folder, script, ("servelab",))


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_code_counts_and_comments_do_not(copied: Path) -> None:
    """A comment moves every line and changes nothing; a constant in a module far down changes the digest."""
    before = digest(copied)
    assert before == digest(SCRIPTS), "where the code lies does not matter"
    stats = copied / "servelab/stats.py"
    stats.write_text("# a comment\n\n" + stats.read_text(encoding="utf-8"), encoding="utf-8")
    assert digest(copied) == before
    append(stats, "\nEXTRA = {'a', 'b', 'c'}\n")
    assert digest(copied) != before


def test_only_what_a_script_uses_counts(copied: Path) -> None:
    """A module that tables do not come from leaves their digest; imports inside functions count; so do texts."""
    summarise, analyse = digest(copied), digest(copied, "analyse.py")
    append(copied / "servelab/report/build.py", "\nEXTRA = 1\n")
    assert (digest(copied), digest(copied, "analyse.py")) == (summarise, analyse)
    append(copied / "servelab/knee.py", "\nEXTRA = 1\n")
    assert digest(copied, "analyse.py") != analyse
    analyse = digest(copied, "analyse.py")
    append(copied / "servelab/texts/en/report.yaml", "\nanother: text\n")
    assert digest(copied, "analyse.py") != analyse


@pytest.mark.slow
def test_digest_is_the_same_in_every_process() -> None:
    """Hash seeds differ between processes, digests of code do not."""
    code = (
        "from pathlib import Path; from servelab import parse_time; "
        f"print(parse_time.code_digest(Path({str(SCRIPTS)!r}), 'summarise.py', ('servelab',)))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(SCRIPTS)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {digest(SCRIPTS) + "\n"}


def test_text_of_a_start_is_what_the_job_reads(project: Project) -> None:
    """The parameter that Snakemake compares is the start itself: equal studies give equal text, key order aside."""
    raw = small_study()
    plan = parse_time.plan(raw, project.root)
    (start,) = plan.starts
    turned = parse_time.plan({**raw, "server": dict(reversed(raw["server"].items()))}, project.root)
    assert turned.start_json(turned.starts[0]) == plan.start_json(start)
    import json

    from servelab.spec import ServerStart

    assert ServerStart.from_json(json.loads(plan.start_json(start))) == start


def test_what_a_model_is_made_from_is_all_that_makes_it_again(project: Project) -> None:
    """Another option or name fetches nothing a second time, another revision does; one source is one job."""
    hub = {"source": "hub", "path": "owner/some-model"}

    def made(**models: dict[str, object]) -> dict[str, str]:
        study = {**small_study(), "models": [{name: keys} for name, keys in models.items()]}
        return parse_time.plan(study, project.root).models_to_make

    once = made(a=hub)
    assert made(b={**hub, "options": {"max_num_batched_tokens": 64}, "max_tokens": 99}) == once
    assert made(a=hub, b={**hub, "options": {"enforce_eager": True}}) == once
    assert made(a={**hub, "revision": "v2"}).keys().isdisjoint(once)
    assert made(a={"source": "dimensions", "path": "models/tiny"}) == {}


@pytest.mark.slow
def test_what_an_engine_leaves_out_is_handed_on_as_nothing(project: Project) -> None:
    """An empty value is still a value on the command line: an option must not take the next one for its own."""
    project.write("pins.txt", [])
    engine = {"kind": "vllm", "device": "cuda", "requirements": "pins.txt", "version": "1.0"}
    project.study = {**small_study(), "engine": engine}
    command = re.search(
        r"make_environment\.py .*", project.run("setup", "--dry-run", "--printshellcmds").output
    )
    assert command is not None
    words = shlex.split(command[0].split(" 2>&1")[0])
    assert "--torch=" in words and "--torch-index=" in words, words


@pytest.mark.slow
def test_a_study_is_measured_in_a_folder_with_a_space(tmp_path: Path) -> None:
    """Neither the project's folder nor that of its environment needs a name without one."""
    project = Project.make(tmp_path / "my project")
    (tmp_path / "my environment").symlink_to(sys.prefix)
    python = tmp_path / "my environment" / Path(sys.executable).relative_to(sys.prefix)
    project.write("config/config.yaml", project.study)
    done = subprocess.run(
        [str(python), *project.command()[1:]],
        cwd=project.root,
        env=project.environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(project.point_paths()) == 2
    assert (project.root / "reports/small.html").is_file()


@pytest.mark.slow
def test_from_elsewhere_the_right_folder_is_named(project: Project, tmp_path: Path) -> None:
    """Paths in results are relative to servelab's folder: a run from another one says how, and begins nothing."""
    project.write("config/config.yaml", project.study)
    command = project.command("all", "--snakefile", str(project.root / "Snakefile"))
    done = subprocess.run(
        command, cwd=tmp_path, env=project.environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert f"add --directory {project.root}" in done.stdout + done.stderr
    assert project.server_starts() == 0


@pytest.mark.slow
def test_setup_is_the_environment_and_the_models_and_measures_nothing(project: Project) -> None:
    """A study whose model is fetched has one job for it however many entries use it; one with all at hand has none."""
    hub = {"source": "hub", "path": "owner/some-model"}
    project.study = {**small_study(), "models": [{"a": hub}, {"b": {**hub, "options": {"seed": 3}}}]}
    run = project.run("setup", "--dry-run")
    assert run.returncode == 0, run.output
    made = [job for job in run.jobs if job != "setup"]
    assert [job.rsplit("_", 1)[0] for job in made] == ["model_owner_some_model"]
    project.study = small_study()
    assert project.run("setup").jobs == ("setup",)


def test_cut_points_are_seen_when_a_run_begins_and_failed_ones_on_request(project: Project) -> None:
    """A point that does not end as an Arrow file is made again; a failed one only with retry_failed."""
    raw = small_study()
    plan = parse_time.plan(raw, project.root)
    one, two = (project.root / path for path in plan.points)
    write_atomically(one, encode_point(record(status="failed", cause="all_failed")))
    write_atomically(two, encode_point(record()))
    assert plan.to_make_again() == []
    again = parse_time.plan({**raw, "retry_failed": "true"}, project.root)
    assert again.to_make_again() == [plan.points[0]]
    two.write_bytes(two.read_bytes()[:-3])
    assert plan.to_make_again() == [plan.points[1]]
    made_of = dict.fromkeys(("summarise", "analyse", "report"), "")
    for looks in ("--dry-run", "-np", "--summary", "--dag", "--report=page.html"):
        plan.take_folder(["snakemake", "all", looks], made_of)
    assert two.exists(), "a dry run clears nothing away"
    plan.take_folder(["snakemake", "all", "plan"], made_of)
    assert not two.exists() and not one.exists(), "one is cut, the other some other point"
    with pytest.raises(BlockingIOError, match="another run is at work"):
        again.take_folder(["snakemake", "all"], made_of)
    assert plan.held is not None
    plan.held.close()


def test_only_a_config_without_a_study_means_the_default_one() -> None:
    """Keys of the command line alone leave the default study; a file that forgot its name is no part of it."""
    assert parse_time.is_default_study({})
    assert parse_time.is_default_study({"retry_failed": True, "set": ["seed=2"]})
    assert not parse_time.is_default_study({"models": ["tiny"], "retry_failed": True})
    assert not parse_time.is_default_study(small_study())


def test_an_archive_is_not_rebuilt_over_a_measured_study(project: Project, tmp_path: Path) -> None:
    """A point of the same name's study is enough; tables of an earlier rebuilding are written again."""
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "config.json").write_text('{"study": "small"}', encoding="utf-8")
    tables = project.root / "results/small/tables/points.arrow"
    tables.parent.mkdir(parents=True)
    tables.touch()
    assert parse_time.rebuilt_study(archive, project.root) == "small"
    start = parse_time.plan(small_study(), project.root).starts[0]
    path = project.root / start.path(start.points[0])
    write_atomically(path, encode_point(record()))
    with pytest.raises(FileExistsError, match="Rebuild in another clone of servelab") as told:
        parse_time.rebuilt_study(archive, project.root)
    assert str(path.relative_to(project.root)) in str(told.value)


def test_a_run_that_makes_something_holds_the_folder(project: Project) -> None:
    """One at a time, whichever command it is; one that only looks holds nothing."""
    assert parse_time.hold_folder(project.root, ["snakemake", "rebuild", "-n"]) is None
    held = parse_time.hold_folder(project.root, ["snakemake", "rebuild"])
    assert held is not None
    with pytest.raises(BlockingIOError, match="another run is at work"):
        parse_time.hold_folder(project.root, ["snakemake", "all"])
    held.close()


@pytest.mark.parametrize(
    ("device", "measured"), [("cpu", True), ("rocm", True), ("tpu", False), ("other", False)]
)
def test_limits_are_asked_for_where_they_can_be_measured(tmp_path: Path, device: str, measured: bool) -> None:
    """A device that the probe does not know gets no job that could only fail."""
    project = Project.make(tmp_path / "project")
    study = {**small_study(), "engine": {"use": "fake", "device": device, "python": "python3", "command": []}}
    planned = parse_time.plan(study, project.root)
    assert bool(planned.limits_file) is measured
    study["engine"] = {"device": device, "python": "/another/python3"}
    other = parse_time.plan(study, project.root).limits_file
    assert (other != planned.limits_file) is measured, "of unknown versions, each interpreter has its own"
