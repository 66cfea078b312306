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
    dtype: str, repeat: int, losses: list[float], digest: str = "d" * 32, failed: int = 0, backend: str = "",
    asked: bool = True,
) -> PointRecord:  # fmt: skip
    """A point whose segments have these losses per scored token, in nats.

    backend: asked for, or without asked chosen by the server and named in its log.
    """
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
    options = perplexity.options_of(dtype, backend if asked else "")
    extra = {"tokens_digest": digest, "text": "pydoc_data.topics"}
    session = {"log": {"backend": backend}} if backend else {}
    at, name = f"{dtype}{backend}", f"{plan[0]}-r{repeat}"
    return placed(rows, plan[1], options, at, name, repeat, extra=extra, session=session)


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


def shifted(shift: float) -> list[float]:
    """The losses, each segment's raised by about as much."""
    return [loss + shift * (1 + 0.1 * (i % 3)) for i, loss in enumerate(LOSSES)]


def test_dtypes_are_compared_on_one_backend_and_backends_at_one_dtype() -> None:
    """2 dtypes × 2 backends: the backend adds 0.2 to every loss and fp8 0.01, and neither is taken for the other."""
    records = [
        point(dtype, 1, shifted(quantised + moved), backend=backend)
        for backend, moved in (("FLASHINFER", 0.0), ("TRITON_ATTN", 0.2))
        for dtype, quantised in (("auto", 0.0), ("fp8", 0.01))
    ]
    analysis = perplexity.analyse(study("perplexity", records), "e", CONFIG)
    said(analysis)
    dtypes = [f.values for f in analysis.findings if f.template == "perplexity_dtype_worse"]
    assert [(v["first"], v["dtype"]) for v in dtypes] == [
        ("auto (FLASHINFER)", "fp8 (FLASHINFER)"),
        ("auto (TRITON_ATTN)", "fp8 (TRITON_ATTN)"),
    ]
    assert [v["change"] for v in dtypes] == pytest.approx([math.expm1(0.0109)] * 2)
    backends = [f.values for f in analysis.findings if f.template == "perplexity_backend_worse"]
    assert [(v["dtype"], v["first_backend"], v["backend"]) for v in backends] == [
        ("auto", "FLASHINFER", "TRITON_ATTN"),
        ("fp8", "FLASHINFER", "TRITON_ATTN"),
    ]
    assert [v["change"] for v in backends] == pytest.approx([math.expm1(0.218)] * 2)
    assert len(dtypes) + len(backends) == len(analysis.findings)
    cells = analysis.tables[0].frame.set_index(["kv_cache_dtype", "attention_backend"])
    assert cells.loc[("fp8", "TRITON_ATTN"), "perplexity_change"] == pytest.approx(100 * math.expm1(0.0109))
    assert cells.loc[("fp8", "TRITON_ATTN"), "change_against"] == "auto"
    assert math.isnan(cells.loc[("auto", "TRITON_ATTN"), "perplexity_change"])


def test_a_backend_that_the_server_changed_with_the_dtype_is_said_to_have_changed() -> None:
    """auto on FLASHINFER, fp8 on TRITON_ATTN, none asked for: no sentence speaks of the dtype alone."""
    records = [
        point("auto", 1, LOSSES, backend="FLASHINFER", asked=False),
        point("fp8", 1, shifted(0.2), backend="TRITON_ATTN", asked=False),
    ]
    found, frame = analysed(*records)
    assert set(found) == {"perplexity_both_worse"}
    values = found["perplexity_both_worse"]
    assert (values["first_backend"], values["backend"]) == ("FLASHINFER", "TRITON_ATTN")
    assert frame["perplexity_change"].isna().all()


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
