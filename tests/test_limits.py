"""The machine's limits are measured by another interpreter, checked, and honest where they are unknown."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from servelab import limits
from servelab.device_lock import device_lock

SCRIPT = Path(__file__).parents[1] / "workflow/scripts/measure_limits.py"

# Stands in for the server's environment: a torch with just what the probe uses, of known speed.
FAKE_TORCH = '''
"""A torch whose device does exactly 2 GFLOP/s and 8 GB/s, told by a clock of its own; CROWD: others slow it."""
import os
import time
CROWD = float(os.environ.get("CROWD", "1"))
_clock = [0.0]
time.perf_counter = lambda: _clock[0] * CROWD
time.process_time = lambda: _clock[0]
__version__ = "fake"
float32 = bfloat16 = None


class Tensor:
    def __init__(self, *shape):
        self.shape = shape

    def to(self, dtype):
        return self

    def copy_(self, other):
        _clock[0] += 8 * self.shape[0] / 8e9

    def sum(self):
        _clock[0] += 4 * self.shape[0] / 5e9


def matmul(left, right):
    _clock[0] += 2 * left.shape[0] ** 3 / 2e9


def randn(*shape, device):
    return Tensor(*shape)


def ones(count, dtype, device):
    return Tensor(count)


def empty_like(tensor):
    return Tensor(*tensor.shape)


def get_num_threads():
    return 1
'''


@pytest.fixture
def environment(tmp_path):
    """An interpreter that has the fake torch."""
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_limits_are_operations_and_bytes_over_time(environment):
    """A device of 2 GFLOP/s and 8 GB/s (copy) is measured as that; reading at 5 GB/s is not its limit."""
    found = limits.measure(environment, "cpu")
    assert found["flops"] == pytest.approx(2e9)
    assert found["bytes_per_s"] == pytest.approx(8e9)
    assert found["source"] == "measured"


def test_others_on_the_machine_do_not_lower_the_limit(environment, monkeypatch):
    """Half the CPU taken by others: the wall clock runs twice as long, the limit stays."""
    monkeypatch.setenv("CROWD", "2")
    assert limits.measure(environment, "cpu")["flops"] == pytest.approx(2e9)


def test_an_interpreter_without_torch_is_named_with_its_own_words(tmp_path):
    """The message says which module is missing."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    with pytest.raises(limits.LimitsError, match="torch"):
        limits.measure(str(python), "cpu")


def test_no_interpreter_and_an_unknown_device_are_errors():
    """Neither is a crash."""
    with pytest.raises(limits.LimitsError, match="nowhere"):
        limits.measure("/nowhere/python", "cpu")
    with pytest.raises(limits.LimitsError, match="abacus"):
        limits.measure(sys.executable, "abacus")


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"flops": 0, "bytes_per_s": 1}', '{"flops": 1e9}'])
def test_an_answer_without_both_numbers_is_refused(text):
    """A limit of zero or none would make every point impossible or none."""
    with pytest.raises(limits.LimitsError):
        limits.checked(text)


def test_the_command_writes_what_it_measured(environment, tmp_path):
    """measure_limits.py leaves a JSON file with both limits."""
    output = tmp_path / "out" / "limits.json"
    command = [
        sys.executable,
        str(SCRIPT),
        "--python",
        environment,
        "--device",
        "cpu",
        "--output",
        str(output),
    ]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert json.loads(output.read_text())["flops"] == pytest.approx(2e9)


def test_the_command_waits_for_who_measures_on_the_machine(environment, tmp_path):
    """Limits measured beside another study's load would be too low for good: the probe takes the machine's lock."""
    output = tmp_path / "limits.json"
    command = [sys.executable, str(SCRIPT), "--python", environment, "--output", str(output)]
    with device_lock("cpu", tmp_path / "other", print):
        probe = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        said = probe.stdout.readline()
        assert "waiting for the cpu of this machine" in said and str(tmp_path / "other") in said
        assert not output.exists()
    probe.communicate(timeout=60)
    assert probe.returncode == 0
    assert json.loads(output.read_text())["source"] == "measured"


def test_the_command_writes_that_it_could_not_measure(tmp_path):
    """No torch is no reason to measure nothing: the file says «unknown» and why, and the exit status is 0."""
    output = tmp_path / "limits.json"
    command = [sys.executable, str(SCRIPT), "--python", "/nowhere/python", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(output.read_text())
    assert done.returncode == 0
    assert found["source"] == "unknown" and "nowhere" in found["reason"]
    assert "flops" not in found
