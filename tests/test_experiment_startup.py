"""E9: the phases of every start and the time until ready are recovered; unaccounted time stays
unaccounted."""

import pytest

from made_study import placed, said, study
from servelab.experiments import startup, workloads
from servelab.records import PointRecord

PHASES = {"imports": 8.0, "weights": 2.0, "compile": 27.0, "unaccounted": 5.0}


def start(boot: str, eager: bool, number: int = 1, **phases: float) -> PointRecord:
    """A start made of these phases one after the other."""
    lengths = {**PHASES, **({"compile": 0.0} if eager else {}), **phases}
    at, listed = 0.0, []
    for name, seconds in lengths.items():
        listed.append([name, at, at + seconds])
        at += seconds
    name, workload = workloads.boot(boot)
    session = {"boot": boot, "ready_s": at, "phases": [phase for phase in listed if phase[2] > phase[1]]}
    return placed(
        [],
        workload,
        {"enforce_eager": eager},
        f"{boot}{eager}{number}",
        f"{name}-r1",
        start=number,
        session=session,
    )


def test_phases_add_up_and_the_longest_is_named() -> None:
    """A start's phases add up to its time until ready; compiling is the longest of 42 s, 5 s are
    unaccounted."""
    records = [start("first", False), start("restart", False, compile=3.0), start("first", True)]
    analysis = startup.analyse(study("startup", records), "e", startup.Config())
    phases = analysis.tables[1].frame
    sums = phases.groupby(["enforce_eager", "boot"])["seconds"].sum()
    assert sums[False, "first"] == pytest.approx(42.0)
    assert sums[False, "restart"] == pytest.approx(18.0)
    firsts = [
        f.values
        for f in analysis.findings
        if f.template == "startup_longest_first" and f.values["setting"] == "compiled"
    ]
    assert [values["phase"] for values in firsts] == ["compile"]
    assert firsts[0]["unaccounted"] == pytest.approx(5.0)
    found = said(analysis)
    assert found["startup_restart_compiled_unknown"]["restart"] == pytest.approx(18.0)
    assert found["startup_eager_first_unknown"]["difference"] == pytest.approx(27.0)


def test_several_starts_give_a_verdict() -> None:
    """Three first starts of 42 s against three restarts of 18 s are a difference with an interval."""
    records = [start("first", False, n, imports=8.0 + n / 10) for n in (1, 2, 3)]
    records += [start("restart", False, n, imports=8.0 + n / 10, compile=3.0) for n in (1, 2, 3)]
    found = said(startup.analyse(study("startup", records), "e", startup.Config()))
    assert found["startup_restart_compiled_different"]["ratio"] == pytest.approx(18.2 / 42.2, rel=0.01)
