"""What study.json says of a study, from what its points say of themselves."""

from made_points import closed_rows, point
from servelab.study_info import fetched_models


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
