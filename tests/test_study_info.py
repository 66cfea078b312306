"""What study.json says of a study, from what its points say of themselves."""

import json
from pathlib import Path

from made_points import closed_rows, point
from servelab.study_info import fetched_models, pins


def test_every_commit_that_a_models_points_were_measured_with_is_told() -> None:
    """One entry a model: points kept from before its branch moved, and points of a servelab that did not note it."""
    fetched = [{"revision": "b"}, {"revision": "a"}, {}, {"revision": "b"}]
    metas = [point(closed_rows(), provenance={"model": each}).meta for each in fetched]
    metas.append(point(closed_rows(), provenance={}).meta)
    own = {"name": "own", "path": "/models/own", "fingerprint": "g"}
    metas.append(point(closed_rows(), start={"model": own}, provenance={"model": {}}).meta)
    tiny = {"name": "tiny", "path": "tiny", "fingerprint": "f"}
    assert fetched_models(metas) == [
        {**tiny, "fetched": ["revision a", "revision b"]},
        {**own, "fetched": []},
    ]


def test_pinned_lists_are_told_of_servers_in_an_environment_of_ours(tmp_path: Path) -> None:
    """Somebody's own vLLM is not fixed by a list of ours; an archive says what it was analysed with."""
    lists = tmp_path / "workflow/envs"
    lists.mkdir(parents=True)
    (lists / "a.txt").write_text("a==1\n", encoding="utf-8")
    own = point(closed_rows(), start={"engine": {"python": "python3", "requirements": ""}}).meta
    ours = point(closed_rows(), start={"engine": {"requirements": "0123"}}).meta
    assert pins(tmp_path, [own]) == {}
    made = pins(tmp_path, [own, ours])
    assert list(made) == ["a.txt"] and made["a.txt"].startswith("sha256:")
    archive = tmp_path / "archive"
    (archive / "tables").mkdir(parents=True)
    (archive / "tables/study.json").write_text(json.dumps({"pins": made}), encoding="utf-8")
    assert pins(archive, [ours]) == made
    assert pins(archive, [own]) == {}
