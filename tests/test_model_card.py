"""A model card is calculated from config.json, agrees with published counts, and says when a formula does not hold."""

import json

import pytest

from servelab import model_card
from servelab.model_card import NotCalculated

SMOLLM2_135M = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_1_7B = {
    "model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "tie_word_embeddings": True, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
    "sliding_window": None, "use_sliding_window": False,
}  # fmt: skip
MIXTRAL_8X7B = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "tie_word_embeddings": False,
    "num_local_experts": 8, "num_experts_per_tok": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151936, "tie_word_embeddings": False, "num_experts": 128, "num_experts_per_tok": 8,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size":
    1408, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102400,
    "tie_word_embeddings": False, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "kv_lora_rank": 512, "q_lora_rank": None,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (SMOLLM2_135M, 134_515_008),
        (QWEN3_1_7B, 1_720_574_976),
        (MIXTRAL_8X7B, 46_702_792_704),
        (QWEN3_30B_A3B, 30_532_122_624),
        (DEEPSEEK_V2_LITE, 15_706_484_224),
    ],
    ids=["smollm2", "qwen3", "mixtral", "qwen3-moe", "deepseek-v2-lite"],
)
def test_parameters_are_exactly_the_published_count(config, published):
    """Dense, tied, mixture of experts and latent attention: to the last parameter."""
    assert model_card.from_config(config).params == published


def test_kv_bytes_per_token_are_the_notes_figure():
    """C01: 2 × 28 × 8 × 128 × 2 = 114,688 bytes; half of it with fp8."""
    card = model_card.from_config(QWEN3_1_7B)
    assert card.kv_bytes_per_token("auto") == 114_688
    assert card.kv_bytes_per_token("fp8") == 57_344
    assert card.kv_bytes_per_token("auto", tensor_parallel=2) == 57_344
    assert card.kv_bytes_per_token("auto", tensor_parallel=16) == 114_688 / 8


@pytest.mark.parametrize(
    ("checkpoint", "options", "said", "size"),
    [
        ("bfloat16", {}, None, 2),
        ("bfloat16", {"dtype": "float32"}, "float32", 4),
        ("bfloat16", {"dtype": "float32"}, None, 4),
        ("bfloat16", {"dtype": "auto"}, "float32", 4),
        ("float32", {}, "bfloat16", 2),
        ("float32", {"dtype": "auto"}, None, 2),
        ("float32", {"dtype": "float32"}, "float32", 4),
    ],
)
def test_a_served_model_has_the_servers_dtype(checkpoint, options, said, size):
    """The option, else the server's own word, else the checkpoint's; float32 is served in 16 bits unless asked for."""
    card = model_card.from_config({**QWEN3_1_7B, "torch_dtype": checkpoint}).as_served(options, said)
    assert card.kv_bytes_per_token("auto") == 57_344 * size
    assert card.weight_bytes() == 1_720_574_976 * size


def test_weights_that_the_server_quantises_are_not_calculated():
    """An option that quantises leaves the cache's formula and takes away that of the weights, with its method."""
    card = model_card.from_config(QWEN3_1_7B).as_served({"quantization": "fp8"}, "bfloat16")
    assert card.step_weight_bytes() == NotCalculated("weights_quantised", {"method": "fp8"})
    assert card.kv_bytes_per_token("auto") == 114_688


def test_pipeline_stages_divide_the_layers():
    """28 layers over 4 stages leave a device 7 of them; over 3 no device's share is the others'."""
    card = model_card.from_config(QWEN3_1_7B)
    assert card.kv_bytes_per_token("auto", tensor_parallel=2, pipeline_parallel=4) == 114_688 / 8
    assert card.kv_bytes_per_token("auto", pipeline_parallel=3).reason == "kv_uneven_stages"


def test_latent_attention_keeps_one_vector_a_token():
    """DeepSeek-V2-Lite: 27 layers × (512 + 64) × 2 bytes, not 2 × heads × head_dim."""
    assert model_card.from_config(DEEPSEEK_V2_LITE).kv_bytes_per_token() == 27 * 576 * 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"use_sliding_window": True, "sliding_window": 4096}, "kv_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "kv_sliding_window"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "kv_hybrid"),
        ({"hybrid_override_pattern": "M-M*"}, "kv_hybrid"),
        ({"model_type": "mamba2"}, "kv_hybrid"),
        ({"num_kv_shared_layers": 10}, "kv_shared_layers"),
        ({"is_encoder_decoder": True}, "kv_encoder_decoder"),
        ({"kv_lora_rank": 512, "index_topk": 2048}, "kv_sparse_index"),
    ],
)
def test_where_the_formula_does_not_hold_the_card_says_why(change, reason):
    """Sliding windows, mixed layers, recurrent state, shared layers: a reason instead of a wrong number."""
    found = model_card.from_config({**QWEN3_1_7B, **change}).kv_bytes_per_token()
    assert isinstance(found, NotCalculated)
    assert found.reason == reason


def test_skipped_layers_and_dtypes_with_scales_are_not_calculated():
    """Layers kept in another dtype, and dtypes with scales beside them, have no single figure."""
    card = model_card.from_config(QWEN3_1_7B)
    assert card.kv_bytes_per_token("fp8", skipped_layers=2).reason == "kv_skipped_layers"
    assert card.kv_bytes_per_token("int8_per_token_head").reason == "kv_dtype_unknown"


def test_a_window_that_is_switched_off_is_no_window():
    """Qwen2 configs name a window and switch it off."""
    config = {**QWEN3_1_7B, "sliding_window": 32768, "use_sliding_window": False}
    assert model_card.from_config(config).kv_bytes_per_token() == 114_688


def test_flops_per_token_are_two_per_matrix_parameter_plus_attention():
    """At context 0 two per matrix parameter; attention adds 4 × layers × heads × head_dim a token of context."""
    card = model_card.from_config(QWEN3_1_7B)
    assert card.flops_per_prefill_token(0) == 2 * card.parameters.matrices_active
    slope = card.flops_per_prefill_token(101) - card.flops_per_prefill_token(1)
    assert slope == 100 * 4 * 28 * 16 * 128
    assert card.flops_per_decode_token(0) - card.flops_per_prefill_token(0) == 2 * 151936 * 2048


def test_a_decode_step_reads_the_weights_once_and_every_requests_cache():
    """Weights do not depend on the batch; the KV part is batch × context × bytes per token."""
    card = model_card.from_config(QWEN3_1_7B)
    assert card.bytes_per_decode_step(1, 0) == card.step_weight_bytes()
    assert card.bytes_per_decode_step(8, 100) - card.step_weight_bytes() == 800 * 114_688


def test_a_token_uses_its_own_experts_only():
    """Of 30.5 billion parameters about 3 billion are multiplied by a token."""
    card = model_card.from_config(QWEN3_30B_A3B)
    assert 2.5e9 < card.parameters.matrices_active < 3.3e9


def test_unknown_architectures_and_quantised_weights_are_not_guessed():
    """An architecture that is not known has no count; quantised weights have no byte count."""
    unknown = model_card.from_config({**SMOLLM2_135M, "model_type": "novel"})
    assert unknown.params is None
    assert unknown.flops_per_prefill_token(1).reason == "parameters_unknown"
    packed = model_card.from_config({**SMOLLM2_135M, "quantization_config": {"quant_method": "awq"}})
    assert packed.weight_bytes().reason == "weights_quantised"
    assert packed.kv_bytes_per_token() == 2 * 30 * 3 * 64 * 2


def test_cards_come_from_folders_and_nested_configs(tmp_path):
    """A folder without config.json has no card; a text_config inside a larger config is read."""
    assert model_card.from_folder(tmp_path) is None
    nested = {"model_type": "outer", "text_config": SMOLLM2_135M}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    card = model_card.from_folder(tmp_path)
    assert (card.model_type, card.head_dim, card.max_positions) == ("llama", 64, 8192)


@pytest.mark.parametrize("value", [None, 0, -1, "many", True])
def test_a_config_without_its_dimensions_is_refused_by_name(value):
    """The key that is missing or no count is named."""
    with pytest.raises(ValueError, match="num_hidden_layers"):
        model_card.from_config({**SMOLLM2_135M, "num_hidden_layers": value})
