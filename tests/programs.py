"""Programs of the system that some tests need: skipped where they are not, and in CI a failure."""

import os
import shutil

import pytest

REQUIRED = "SERVELAB_TESTS_SKIP_NOTHING"


def need(command: str, package: str) -> str:
    """The path of a program. Without it the test is skipped and the reason names Debian's package.

    With the variable REQUIRED in the environment (`.ci/run` sets it) the test fails instead.
    """
    found = shutil.which(command)
    if found is not None:
        return found
    why = f"{command} is not here; Debian has it in the package {package}"
    if os.environ.get(REQUIRED):
        pytest.fail(why)
    pytest.skip(why)
