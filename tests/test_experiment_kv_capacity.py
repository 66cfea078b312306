"""E2: capacity, bytes per token against the formula, first start against restarts are recovered."""

import pytest

from made_study import placed, said, study
from servelab import model_card
from servelab.experiments import kv_capacity, workloads
from servelab.records import PointRecord

QWEN = model_card.from_config({
    "model_type": "qwen3", "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8,
    "num_hidden_layers": 28, "head_dim": 128, "vocab_size": 151936, "intermediate_size": 6144,
    "torch_dtype": "bfloat16", "tie_word_embeddings": True,
})  # fmt: skip
GIB = 1 << 30


def start(
    boot: str, number: int, tokens: int, dtype: str = "auto", per_token: int = 114_688, **options: object
) -> PointRecord:
    """A start whose log says `tokens` and the memory they take, in GiB with two decimals."""
    said_bytes = round(tokens * per_token / GIB, 2) * GIB
    log = {"kv_cache_tokens": tokens, "kv_cache_bytes": said_bytes, "kv_available_bytes": said_bytes}
    session = {
        "boot": boot,
        "log": log,
        "cache_config": {"num_gpu_blocks": str(tokens // 16), "block_size": "16"},
    }
    name, workload = workloads.boot(boot)
    return placed(
        [], workload, {"kv_cache_dtype": dtype, **options}, f"{dtype}-{boot}-{number}", f"{name}-r1",
        start=number, session=session,
    )  # fmt: skip


def notes() -> list[PointRecord]:
    """The field notes' starts: bf16 22,048 then 26,560 three times, fp8 41,920."""
    restarts = [start("restart", n, 26_560) for n in (1, 2, 3)]
    return [start("first", 1, 22_048), *restarts, start("first", 1, 41_920, "fp8", 57_344)]


def test_the_notes_capacities_give_the_notes_conclusions() -> None:
    """Bytes per token agree with 114,688 within the log's two decimals; restarts hold 1.2 ×, fp8 1.9 × as
    much."""
    analysis = kv_capacity.analyse(study("kv_capacity", notes(), {"tiny": QWEN}), "e", kv_capacity.Config())
    found = said(analysis)
    assert found["kv_capacity_formula_agrees"]["formula"] in (114_688, 57_344)
    assert found["kv_capacity_restart_differ_each"]["ratio"] == pytest.approx(26_560 / 22_048)
    assert found["kv_capacity_dtype"]["ratio"] == pytest.approx(41_920 / 22_048)
    starts = analysis.tables[0].frame
    assert list(starts["metrics_tokens"]) == list(starts["kv_cache_tokens"])
    assert starts["relative_error_pct"].abs().max() < 0.5
    fits = analysis.tables[1].frame.set_index(["kv_cache_dtype", "boot", "input_tokens"])["requests_that_fit"]
    assert int(fits["auto", "first", 512]) == 34
    assert int(fits["auto", "first", 2048]) == 10


@pytest.mark.parametrize(
    ("checkpoint", "options", "said_dtype", "per_token"),
    [
        ("bfloat16", {}, None, 114_688),
        ("float32", {}, "bfloat16", 114_688),
        ("bfloat16", {"dtype": "float32"}, "float32", 229_376),
        ("bfloat16", {"dtype": "float32", "kv_cache_dtype": "fp8"}, "float32", 57_344),
        ("bfloat16", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "bfloat16", 114_688 / 4),
    ],
)
def test_the_formula_is_that_of_the_server(
    checkpoint: str, options: dict, said_dtype: str | None, per_token: float
) -> None:
    """The cache has the dtype that the model is served in, unless it has one of its own; a device has its share."""
    record = start("first", 1, 22_048)
    record.meta.spec["server"]["options"] |= options
    record.meta.session["log"]["dtype"] = said_dtype
    card = model_card.from_config({**QWEN.config, "torch_dtype": checkpoint})
    data = study("kv_capacity", [record], {"tiny": card})
    starts = kv_capacity.analyse(data, "e", kv_capacity.Config()).tables[0].frame
    assert list(starts["formula_bytes_per_token"]) == [per_token]


def test_a_wrong_formula_is_not_called_agreement() -> None:
    """A log whose bytes per token are 10 % off the formula contradicts it."""
    records = [start("first", 1, 22_048, per_token=126_000)]
    found = said(
        kv_capacity.analyse(study("kv_capacity", records, {"tiny": QWEN}), "e", kv_capacity.Config())
    )
    assert found["kv_capacity_formula_differs"]["error"] == pytest.approx(126_000 / 114_688 - 1, abs=0.003)


def test_a_given_capacity_says_nothing_about_restarts() -> None:
    """Where blocks were given by an option, equal capacities are no finding about first starts."""
    records = [
        start("first", 1, 22_048, num_gpu_blocks_override=1378),
        start("restart", 1, 22_048, num_gpu_blocks_override=1378),
    ]
    found = said(
        kv_capacity.analyse(study("kv_capacity", records, {"tiny": QWEN}), "e", kv_capacity.Config())
    )
    assert "kv_capacity_restart_given" in found
    assert not found.keys() & {"kv_capacity_restart_equal", "kv_capacity_dtype"}


def test_a_model_without_formula_is_not_calculated() -> None:
    """For sliding windows the formula's cell stays empty, with the reason, and nothing is concluded about
    it."""
    sliding = model_card.from_config(
        {**QWEN.config, "layer_types": ["sliding_attention"] * 28, "sliding_window": 512}
    )
    analysis = kv_capacity.analyse(
        study("kv_capacity", notes(), {"tiny": sliding}), "e", kv_capacity.Config()
    )
    assert analysis.tables[0].frame["formula_bytes_per_token"].isna().all()
    assert set(analysis.tables[0].frame["reason"]) == {"kv_sliding_window"}
    assert said(analysis)["kv_capacity_not_calculated"]["reason"] == "kv_sliding_window"
