"""The paper's beginning: abstract and how sure, questions, environment and method."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from servelab import redact
from servelab.claims import MEASURED, NOT_MEASURED, Analysis, Table
from servelab.report.sections import Sections, SectionView, Sentence, heaviest
from servelab.report.words import Words
from servelab.texts import significant

_DIGEST_CHARS = 12


@dataclass(frozen=True)
class Counts:
    """How many points there are and how many may be believed."""

    points: int
    valid: int
    suspect: int
    invalid: int
    sessions: int
    machines: int


@dataclass(frozen=True)
class QuestionView:
    """A question of the study and the sections that answer it, as (anchor, title)."""

    text: str
    links: tuple[tuple[str, str], ...]
    state: str  # answered, partly, unanswered


@dataclass
class EnvironmentView:
    """Machine, versions, server starts and the method. commands: (server's name, shell line)."""

    machines: list[str] = field(default_factory=list)
    accelerators: list[str] = field(default_factory=list)
    tables: list[Any] = field(default_factory=list)
    commands: list[tuple[str, str]] = field(default_factory=list)
    method: list[str] = field(default_factory=list)
    definitions: list[tuple[str, str]] = field(default_factory=list)
    shared: str = ""


def counts(points: pd.DataFrame) -> Counts:
    """Count points by verdict; a point that failed counts as invalid."""
    failed = points["status"] != "ok"
    invalid = failed | (points["verdict"] == "invalid")
    suspect = ~invalid & (points["verdict"] == "suspect")
    return Counts(
        points=len(points),
        valid=int((~invalid & ~suspect).sum()),
        suspect=int(suspect.sum()),
        invalid=int(invalid.sum()),
        sessions=int(points["session_id"].nunique()),
        machines=int(points["machine_id"].nunique()),
    )


def abstract(analyses: Sequence[Analysis], sections: Sections) -> list[Sentence]:
    """The three findings that matter most."""
    return [sections.sentence(finding) for finding in heaviest(analyses)]


def how_sure(
    count: Counts, sections: Sequence[SectionView], said: Sequence[Sentence], words: Words
) -> list[tuple[str, str, str]]:
    """Sentences on how sure the study is, each as (text, anchor, anchor's words).

    said: what the abstract has said already; it is not said twice.
    """
    out = [(words("abstract.sure_points", vars(count)), "", "")]
    repeats = next((s for s in sections if s.kind == "repeatability" and not s.reason), None)
    if repeats is None:
        out.append((words("abstract.sure_unknown"), "", ""))
    else:
        told = {sentence.text for sentence in said}
        best = next((s.text for s in repeats.sentences if s.text not in told), "")
        out.append((best or words("abstract.sure_repeats"), repeats.id, repeats.full_title))
    if count.machines:
        key = "abstract.sure_one_machine" if count.machines == 1 else "abstract.sure_machines"
        out.append((words(key, n=count.machines), "", ""))
    return out


def questions(sections: Sequence[SectionView], words: Words) -> list[QuestionView]:
    """The questions, each with the sections that answer it."""
    out = []
    for name in words.children("questions.list"):
        kinds = words(f"questions.list.{name}.kinds").split()
        there = [s for s in sections if s.kind in kinds]
        answering = [s for s in there if not s.reason]
        state = "unanswered" if not answering else "answered" if len(answering) == len(there) else "partly"
        links = tuple((s.id, s.full_title) for s in answering)
        out.append(QuestionView(words(f"questions.list.{name}.text"), links, state))
    return out


def environment(info: Mapping[str, Any], sections: Sections) -> EnvironmentView:
    """What the study ran on and how."""
    words = sections.words
    config = info.get("config") or {}
    view = EnvironmentView()
    for machine in info.get("machines") or []:
        view.machines.append(_machine(machine, words))
        view.accelerators += [_accelerator(entry) for entry in machine.get("accelerators") or []]
    for table in (limits_table(info, words), models_table(info), sessions_table(info)):
        if table is not None:
            view.tables.append(sections.table(table))
    view.commands = command_lines(info)
    view.method = [
        words(f"environment.method_list.{i}", seed=config.get("seed", 1))
        for i in range(len(words.children("environment.method_list")))
    ]
    view.definitions = [
        (words(f"environment.definition.{name}.term"), words(f"environment.definition.{name}.text"))
        for name in words.children("environment.definition")
    ]
    view.shared = words("environment.shared" if config.get("share_servers") else "environment.separate")
    return view


def _machine(machine: Mapping[str, Any], words: Words) -> str:
    memory = machine.get("memory_bytes")
    return words(
        "environment.machine_line",
        id=machine.get("id", "?"),
        cpu=machine.get("cpu") or words("provenance.none"),
        cores=machine.get("cores") or "?",
        memory=f"{memory / 2**30:.1f} GiB" if isinstance(memory, (int, float)) else "?",
        os=machine.get("os") or words("provenance.none"),
    )


def _accelerator(entry: object) -> str:
    if not isinstance(entry, Mapping):
        return str(entry)
    facts = [str(entry[key]) for key in ("memory.total", "memory_total", "driver_version") if entry.get(key)]
    return f"{entry.get('name', '?')} ({', '.join(facts)})" if facts else str(entry.get("name", "?"))


def limits_table(info: Mapping[str, Any], words: Words) -> Table | None:
    """What the machines can do, a row a limit; None if nothing is known."""
    rows = [
        {
            "machine_id": machine.get("id", ""),
            "limit": words.optional(f"limits.{name}", name),
            "value": _rate(name, value),
        }
        for machine in info.get("machines") or []
        for name, value in sorted((machine.get("limits") or {}).items())
        if isinstance(value, (int, float))
    ]
    return Table("machine_limits", pd.DataFrame(rows)) if rows else None


def _rate(name: str, value: float) -> str:
    """A limit with the prefix a person would use: 120 GFLOP/s, 19 GB/s."""
    unit = {"flops": "FLOP/s", "bytes_per_s": "B/s", "cache_bytes": "B"}.get(name, "")
    for power, prefix in ((12, "T"), (9, "G"), (6, "M")):
        if abs(value) >= 10**power and unit:
            return f"{significant(value / 10**power, 3)} {prefix}{unit}"
    return f"{value:g} {unit}".strip()


def models_table(info: Mapping[str, Any]) -> Table | None:
    """The models with their fingerprints, and what was fetched where servelab fetched it."""
    models = info.get("models") or []
    rows = [
        {"name": m.get("name"), "path": m.get("path"), "fingerprint": m.get("fingerprint")} for m in models
    ]
    if any(m.get("fetched") for m in models):
        for row, model in zip(rows, models, strict=True):
            row["fetched"] = ", ".join(_short(said) for said in model.get("fetched") or []) or None
    return Table("models", pd.DataFrame(rows)) if rows else None


def _short(fetched: str) -> str:
    """«revision 0123…» with as much of the digest as tells two apart."""
    kind, _, value = fetched.partition(" ")
    return f"{kind} {value[:_DIGEST_CHARS]}"


def sessions_table(info: Mapping[str, Any]) -> Table | None:
    """The server starts, with boot history and time to ready."""
    rows = [
        {
            "experiment": s.get("experiment"),
            "server": s.get("slug"),
            "start": s.get("start"),
            "boot": s.get("boot"),
            "ready_s": s.get("ready_s"),
            "points": s.get("points"),
            "version": s.get("version"),
            "machine_id": s.get("machine_id"),
        }
        for s in info.get("sessions") or []
    ]
    return Table("server_starts", pd.DataFrame(rows), {"ready_s": ("s", MEASURED)}) if rows else None


def command_lines(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """One shell line a server configuration, secrets hidden; ports and names of a start vary, so the first is shown."""
    out: dict[str, str] = {}
    for session in info.get("sessions") or []:
        argv = session.get("argv")
        name = f"{session.get('experiment', '')}/{session.get('slug', '')}"
        if argv and name not in out:
            out[name] = shlex.join(redact.argv([str(word) for word in argv]))
    return list(out.items())


def measured_kinds(analyses: Sequence[Analysis]) -> set[str]:
    """Kinds that yielded something."""
    return {a.kind for a in analyses if a.status != NOT_MEASURED}
