"""E6: misses and hits are told apart, the counters are held against the loads, the cost is compared on
against off."""

from statistics import geometric_mean

import pytest

from made_points import closed_rows, counters, request
from made_study import placed, said, study
from servelab.experiments import prefix_cache, workloads
from servelab.records import PointRecord

CONFIG = prefix_cache.Config(
    shared_tokens=96, unique_tokens=32, groups=3, hits_per_group=4, cost_concurrency=4, cost_input_tokens=64,
    cost_output_tokens=16, cost_requests=16,
)  # fmt: skip
MISS_S, HIT_S = 0.394, 0.028


def metrics(queries: int, hits: int) -> dict:
    return counters(
        {"prefix_cache_queries": 0, "prefix_cache_hits": 0},
        {"prefix_cache_queries": queries, "prefix_cache_hits": hits},
    )


def one_by_one(on: bool, shared: bool, hits: int, miss_s: float = MISS_S, start: int = 1) -> PointRecord:
    """15 requests after one another; with the cache on and a shared prefix the first of each group misses."""
    seen: set[int] = set()
    rows = []
    for index in range(15):
        group = index % 3
        hit = on and shared and group in seen
        seen.add(group)
        rows.append(request(
            index, float(index), ttft_s=HIT_S if hit else miss_s, input_tokens=128, output_tokens=1,
            prefix_group=group if shared else None, cached_tokens=96 if hit else 0,
        ))  # fmt: skip
    name, workload = workloads.closed(1, 128, 1, 15, *((96, 3) if shared else ()))
    return placed(
        rows,
        workload,
        {"enable_prefix_caching": on},
        f"on{on}" if start == 1 else f"on{on}-{start}",
        f"{name}-r1",
        start=start,
        metrics=metrics(15 * 128, hits),
    )


def cost(on: bool, repeat: int, hits: int = 0) -> PointRecord:
    name, workload = workloads.closed(4, 64, 16, 16)
    rows = closed_rows(4, 4, gap_s=0.0101 if on else 0.01)
    queries = 16 * 64 if on else 0
    return placed(
        rows,
        workload,
        {"enable_prefix_caching": on},
        f"on{on}",
        f"{name}-r{repeat}",
        repeat,
        metrics=metrics(queries, hits),
    )


def everything(**wrong: int) -> list[PointRecord]:
    loads = [
        one_by_one(on, shared, 12 * 96 if on and shared else 0)
        for on in (True, False)
        for shared in (True, False)
    ]
    return loads + [
        cost(on, repeat, wrong.get("hits", 0) if on else 0) for on in (True, False) for repeat in (1, 2)
    ]


def test_misses_and_hits_are_told_apart() -> None:
    """The first request of a prefix misses, the others hit: 394 against 28 ms, with the cache off all are
    as slow."""
    analysis = prefix_cache.analyse(study("prefix_cache", everything()), "e", CONFIG)
    found = said(analysis)["prefix_cache_hit"]
    assert (found["misses"], found["hits"]) == (3, 12)
    assert found["miss"] == pytest.approx(394) and found["hit"] == pytest.approx(28)
    cells = analysis.tables[0].frame.set_index(["enable_prefix_caching", "request"])
    assert cells.loc[(False, "hit"), "ttft_p50_ms"] == pytest.approx(394)
    assert cells.loc[(True, "hit"), "cached_tokens_p50"] == 96


@pytest.mark.parametrize(
    ("off_s", "on_s", "outcome"),
    [
        ((0.394,), (0.400,), "unknown"),  # 15 requests each, all apart: still one start each
        ((0.394,), (0.399, 0.401), "unknown"),
        ((0.380, 0.410), (0.385, 0.415), "same"),
        ((0.394, 0.395), (0.434, 0.435), "different"),
    ],
)
def test_where_nothing_is_shared_the_start_is_the_unit_and_not_the_request(
    off_s: tuple[float, ...], on_s: tuple[float, ...], outcome: str
) -> None:
    """On against off one by one is judged by how starts differ; on one start of a side there is no verdict."""
    records = [
        one_by_one(on, False, 0, ttft_s, start)
        for on, starts in ((True, on_s), (False, off_s))
        for start, ttft_s in enumerate(starts, 1)
    ]
    found = said(prefix_cache.analyse(study("prefix_cache", records), "e", CONFIG))
    assert [name for name in found if "unshared" in name] == [f"prefix_cache_unshared_{outcome}"]
    values = found[f"prefix_cache_unshared_{outcome}"]
    assert values["base"] == pytest.approx(1000 * geometric_mean(off_s))
    assert values["other"] == pytest.approx(1000 * geometric_mean(on_s))


def test_counters_that_agree_are_said_to_agree() -> None:
    """Hits only where prompts share a prefix and the cache is on: all six loads agree."""
    found = said(prefix_cache.analyse(study("prefix_cache", everything()), "e", CONFIG))
    assert found["prefix_cache_counters_right"]["checked"] == 6
    assert found["prefix_cache_cost_throughput_unknown"]["ratio"] == pytest.approx(
        (0.05 + 0.15) / (0.05 + 0.1515), rel=1e-3
    )


def test_hits_where_nothing_is_shared_are_told() -> None:
    """Hits of the cost load mean that its prompts were not unique: the comparison must not be believed."""
    found = said(prefix_cache.analyse(study("prefix_cache", everything(hits=640)), "e", CONFIG))
    assert found["prefix_cache_counters_wrong"]["wrong"] == 1


def test_hits_that_made_their_points_invalid_are_told_all_the_same() -> None:
    """The gate takes such points out of every comparison; the counters are still held against them."""
    data = study("prefix_cache", everything(hits=640))
    data.rows.loc[data.rows["prefix_hits"] == 640, "verdict"] = "invalid"
    found = said(prefix_cache.analyse(data, "e", CONFIG))
    assert found["prefix_cache_counters_wrong"]["wrong"] == 1
