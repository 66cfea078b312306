"""Whether every point of a soak is there once and right: each row against the fake server's own notes."""

from collections import Counter
from typing import Any

from fake_server.truth import prompt_digest
from project_folder import Project
from servelab.prompts import PromptSource
from servelab.records import PointRecord
from servelab.spec import Workload

POINTS, STARTS = 1000, 100
# Fault of the fake server → causes under which the row may stand.
CAUSES = {
    "http": {"http_error"},
    "error_event": {"error_event"},
    "close": {"closed_early"},
    "reset": {"reset", "closed_early"},
    "stall": {"stalled"},
    "usage": {"output_tokens", "token_count"},
}


def check(project: Project) -> tuple[list[str], dict[str, Any]]:
    """(what is wrong, figures of the soak)."""
    problems: list[str] = []
    records = project.records()
    keys = Counter(record.meta.key for record in records.values())
    if len(records) != POINTS or len(keys) != POINTS or max(keys.values()) != 1:
        problems.append(f"{len(records)} points with {len(keys)} keys, not {POINTS}")
    if len(project.store_paths()) != POINTS:
        problems.append(f"{len(project.store_paths())} files in the store, not {POINTS}")
    notes = _notes_by_session(project)
    rows, bad = 0, Counter[str]()
    for name, record in records.items():
        if record.meta.status != "ok":
            problems.append(f"{name}: {record.meta.status} ({record.meta.cause})")
            continue
        for row, note in _pairs(record, notes):
            rows += 1
            wrong = _wrong(row, note)
            if wrong:
                problems.append(f"{name} request {row['index']}: {wrong}")
            elif not row["ok"]:
                bad[row["cause"]] += 1
    temporary = list((project.root / "results").rglob("*.tmp"))
    if temporary:
        problems.append(f"temporary files left: {temporary[:3]}")
    used = {record.meta.session["id"] for record in records.values() if record.meta.session}
    starts = project.server_starts()
    figures = {
        "points": len(records),
        "requests": rows,
        "failed_rows_by_cause": dict(sorted(bad.items())),
        "starts": starts,
        "starts_needed": STARTS,
        "starts_with_points": len(used),
        "starts_wasted": starts - len(used),
        "faults": dict(Counter(note["fault"]["do"] for note in project.truth("fault"))),
    }
    return problems, figures


def _notes_by_session(project: Project) -> dict[tuple[str, str], dict[str, Any]]:
    """(session id, prompt digest) → what the fake server noted about that request."""
    sessions = {}
    for note in project.truth("start"):
        served = next(word for word in note["argv"] if word.startswith("--served-model-name="))
        sessions[note["start"]] = served.rsplit("-", 1)[1]
    return {(sessions[note["start"]], note["prompt"]): note for note in project.truth("request")}


def _pairs(
    record: PointRecord, notes: dict[tuple[str, str], dict[str, Any]]
) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Rows of a point, each with the server's note of the same prompt on the same server."""
    workload = Workload.from_json(record.meta.spec["workload"])
    source = PromptSource(record.meta.spec["seed"], record.meta.key, 1000)
    found = []
    for row in record.requests.to_pylist():
        ids = source.prompt(row["role"], row["index"], workload.input_tokens, workload)
        found.append(
            (row, notes.get((record.meta.session["id"], prompt_digest(int(token) for token in ids))))
        )
    return found


def _wrong(row: dict[str, Any], note: dict[str, Any] | None) -> str | None:
    """What a row says that the server's note does not; None if they agree."""
    if note is None:
        return None if row["cause"] == "http_error" else "the server knows nothing of this request"
    struck = [name for name in note["faults"] if name in CAUSES]
    if row["ok"]:
        if struck:
            return f"ok although the server did {struck}"
        if sum(row["chunk_tokens"]) != note["output_tokens"] or row["input_tokens"] != note["prompt_tokens"]:
            return "token counts differ from the server's"
        early = [
            s
            for s, due in zip(row["chunk_s"], note["token_s"], strict=True)
            if s - row["sent_s"] < due - note["arrived_s"] - 0.002
        ]
        return f"{len(early)} chunks seen before they were due" if early else None
    allowed = set().union(*(CAUSES[name] for name in struck)) if struck else set()
    return None if row["cause"] in allowed else f"failed as {row['cause']}, the server did {note['faults']}"
