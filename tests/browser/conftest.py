"""The made-up study's paper in both languages and a comparison, on disk, with its files beside it."""

import asyncio
import fcntl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import chromium  # noqa: E402

import report_fixture  # noqa: E402
from programs import need  # noqa: E402

AXE = HERE / "node_modules/axe-core/axe.min.js"


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """name → HTML file: en, ko, compare."""
    return report_fixture.write_papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core's source, put beside the tests by npm where it is not there yet."""
    with (HERE / "package.json").open() as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        if not AXE.exists():
            npm = need("npm", "npm")
            command = [npm, "ci", "--prefix", str(HERE), "--no-audit", "--no-fund"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, f"axe-core could not be installed:\n{done.stdout}{done.stderr}"
    return AXE.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def door() -> Iterator[str]:
    """One browser for all tests; each gets a tab that remembers nothing of the others."""
    if not chromium.COMMAND:
        need("chromium", "chromium")
    with chromium.browser() as door:
        yield door


@pytest.fixture
def browse(door: str, tmp_path: Path) -> Callable[[Callable[[chromium.Page], Awaitable[Any]]], Any]:
    """Run a scenario in a fresh tab; downloads go to tmp_path."""

    def run(scenario: Callable[[chromium.Page], Awaitable[Any]]) -> Any:
        async def whole() -> Any:
            async with chromium.page(door, tmp_path) as page:
                return await scenario(page)

        return asyncio.run(whole())

    return run
