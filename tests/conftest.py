"""What tests share: the order of the tiers, project folders in which Snakemake really runs, the real server.

The fixtures' values live in modules beside this one (project_folder.py), so that tests can name their types.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

from project_folder import REPO, Project, RealServer
from servelab import parse_time
from servelab.models import MARKER

# A shared machine is slow at times: no deadline for a single example.
settings.register_profile("servelab", deadline=None, max_examples=60)
settings.load_profile("servelab")

# Quick answers first: a broken module should not hide behind minutes of Snakemake runs.
TIERS = ("slow", "browser", "real")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests without one of the tiers' markers, then slow, browser, real; the order within a tier stays."""
    items.sort(
        key=lambda item: max(
            (TIERS.index(m.name) + 1 for m in item.iter_markers() if m.name in TIERS), default=0
        )
    )


@pytest.fixture(scope="session", autouse=True)
def locks_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For fixtures of a module or session, which come before a test's own: not the machine's lock folder either."""
    before = os.environ.get("SERVELAB_LOCKS")
    os.environ["SERVELAB_LOCKS"] = str(tmp_path_factory.mktemp("locks"))
    yield
    if before is None:
        del os.environ["SERVELAB_LOCKS"]
    else:
        os.environ["SERVELAB_LOCKS"] = before


@pytest.fixture(autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has its own lock folder: tests must not wait for one another, nor for a study on this machine."""
    monkeypatch.setenv("SERVELAB_LOCKS", str(tmp_path_factory.mktemp("locks")))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A folder in which Snakemake measures the fake server (see project_folder.py); no server outlives the test."""
    made = Project.make(tmp_path / "project")
    yield made
    made.end_leftovers()


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> RealServer:
    """vLLM for CPUs and the small model of the default study, made in resources/ if not there yet (minutes)."""
    study = yaml.safe_load((REPO / "config/config.yaml").read_text(encoding="utf-8"))
    plan = parse_time.plan(study, REPO)
    environment, model = REPO / plan.environment, REPO / plan.model_folders["smollm2-135m"]
    if not all((folder / MARKER).exists() for folder in (environment, model)):
        command = [sys.executable, "-m", "snakemake", "--cores", "1", "setup"]
        # Somebody may be measuring in this checkout: then it is their turn first.
        deadline = time.monotonic() + 1500
        while True:
            done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=1500)
            if "another run is at work" not in done.stdout + done.stderr or time.monotonic() > deadline:
                break
            time.sleep(5)
        assert done.returncode == 0, (
            f"the server's environment could not be made:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
    caches = tmp_path_factory.mktemp("vllm-caches")
    return RealServer(environment / "bin/python", environment, model, caches)
