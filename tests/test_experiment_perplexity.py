"""E5q: perplexity, the same setting twice, and the refusal to compare what was not scored on the same
tokens."""

import math

import pytest

from made_points import request
from made_study import placed, said, study
from servelab.experiments import perplexity
from servelab.records import PointRecord

SEGMENTS, TOKENS = 10, 64
CONFIG = perplexity.Config(segments=SEGMENTS, segment_tokens=TOKENS)


def point(
    dtype: str, repeat: int, losses: list[float], digest: str = "d" * 32, failed: int = 0
) -> PointRecord:
    """A point whose segments have these losses per scored token, in nats."""
    plan = perplexity.expand(CONFIG)[0].workloads[0]
    rows = [
        request(
            i,
            float(i),
            input_tokens=TOKENS,
            output_tokens=1,
            nll=loss * (TOKENS - 1),
            scored_tokens=TOKENS - 1,
        )
        for i, loss in enumerate(losses)
    ]
    for row in rows[:failed]:
        row.update(ok=False, cause="timeout", nll=None, scored_tokens=None)
    options = {"kv_cache_dtype": dtype, "enable_prefix_caching": False}
    extra = {"tokens_digest": digest, "text": "pydoc_data.topics"}
    return placed(rows, plan[1], options, dtype, f"{plan[0]}-r{repeat}", repeat, extra=extra)


LOSSES = [2.0 + 0.1 * i for i in range(SEGMENTS)]


def analysed(*records: PointRecord) -> tuple[dict, object]:
    analysis = perplexity.analyse(study("perplexity", records), "e", CONFIG)
    return said(analysis), analysis.tables[0].frame


def test_perplexity_is_the_exponential_of_the_mean_loss() -> None:
    """exp(mean of the losses), the same for both repeats, which agree to the last digit."""
    found, frame = analysed(point("auto", 1, LOSSES), point("auto", 2, LOSSES))
    assert list(frame["perplexity"]) == pytest.approx([math.exp(2.45)] * 2)
    assert found["perplexity_repeats_equal"]["points"] == 2


@pytest.mark.parametrize(("shift", "outcome"), [(0.01, "worse"), (-0.02, "better")])
def test_a_shift_of_every_segment_is_seen_with_its_sign(shift: float, outcome: str) -> None:
    """A change that all segments share is found in pairs though segments differ by far more than it."""
    other = [loss + shift * (1 + 0.1 * (i % 3)) for i, loss in enumerate(LOSSES)]
    found, _ = analysed(point("auto", 1, LOSSES), point("fp8", 1, other))
    values = found[f"perplexity_dtype_{outcome}"]
    assert values["change"] == pytest.approx(
        math.expm1(sum(b - a for a, b in zip(LOSSES, other, strict=True)) / SEGMENTS)
    )
    assert (values["low"] > 0) == (shift > 0) and (values["high"] > 0) == (shift > 0)


def test_other_token_ids_make_the_comparison_void() -> None:
    """Points scored on different token ids are shown and not compared."""
    found, frame = analysed(point("auto", 1, LOSSES), point("fp8", 1, LOSSES, digest="e" * 32))
    assert set(found) == {"perplexity_void"}
    assert frame["perplexity_change"].isna().all()


def test_a_point_with_failed_segments_is_not_compared() -> None:
    """A perplexity over fewer segments is another text's."""
    found, frame = analysed(point("auto", 1, LOSSES), point("fp8", 1, LOSSES, failed=2))
    assert found["perplexity_partial"]["segments_ok"] == SEGMENTS - 2
    assert frame["perplexity_change"].isna().all()
