"""How many parameters a decoder has, by what they do, for the architectures whose matrices are known.

The layouts are those of the Hugging Face implementations (transformers, models/<model_type>/modeling_*.py).
An architecture that is not listed gives None: a count that is nearly right would make a limit that is wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_QKV_BIAS = ("qwen2", "qwen2_moe")  # q, k and v with bias whatever the config says
_QK_NORM = ("qwen3", "qwen3_moe")  # one norm over head_dim for q, one for k
_KNOWN = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "deepseek_v2",
    "deepseek_v3",
    "phi3",
)
_LATENT_KEYS = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3_text", "gpt2", "opt")


@dataclass(frozen=True)
class Parameters:
    """Parameter counts. total: all, tied embeddings once. matrices: layer matrices that a token is multiplied by.

    matrices_active: those that one token uses (of a mixture of experts, its own experts). embedding: the
    table; vectors: norms and biases.
    """

    total: int
    matrices: int
    matrices_active: int
    embedding: int
    vectors: int


def count(
    config: Mapping[str, Any],
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    tied: bool,
) -> Parameters | None:
    """Parameters of a model with these dimensions; None for an architecture that is not known here."""
    model_type = str(config.get("model_type", ""))
    if model_type not in _KNOWN or not config.get("intermediate_size"):
        return None
    if config.get("kv_lora_rank"):
        if any(name not in config for name in _LATENT_KEYS):
            return None
        attention, attention_vectors = _latent_attention(config, hidden, heads)
    else:
        attention, attention_vectors = _attention(config, model_type, hidden, heads, kv_heads, head_dim)
    matrices = active = 0
    for layer in range(layers):
        all_of_it, used = _feed_forward(config, layer, hidden)
        matrices += attention + all_of_it
        active += attention + used
    vectors = layers * (attention_vectors + 2 * hidden) + hidden
    if config.get("mlp_bias"):
        vectors += layers * (2 * int(config["intermediate_size"]) + hidden)
    if config.get("topk_method") == "noaux_tc":  # one correction for each expert (DeepSeek-V3)
        vectors += (layers - int(config.get("first_k_dense_replace", 0))) * int(config["n_routed_experts"])
    embedding = vocab * hidden
    total = matrices + vectors + embedding * (1 if tied else 2)
    return Parameters(total, matrices, active, embedding, vectors)


def _attention(
    config: Mapping[str, Any], model_type: str, hidden: int, heads: int, kv_heads: int, head_dim: int
) -> tuple[int, int]:
    """(matrix parameters, vector parameters) of one layer's attention."""
    queries, keys = heads * head_dim, kv_heads * head_dim
    matrices = hidden * (queries + 2 * keys) + queries * hidden
    vectors = 0
    if model_type in _QKV_BIAS or config.get("attention_bias"):
        vectors += queries + 2 * keys
    if config.get("attention_bias") and model_type not in _QKV_BIAS:
        vectors += hidden
    if model_type in _QK_NORM:
        vectors += 2 * head_dim
    return matrices, vectors


def _latent_attention(config: Mapping[str, Any], hidden: int, heads: int) -> tuple[int, int]:
    """(matrix, vector) parameters of one layer of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""
    nope, rope = int(config["qk_nope_head_dim"]), int(config["qk_rope_head_dim"])
    latent, values = int(config["kv_lora_rank"]), int(config["v_head_dim"])
    query_rank = int(config.get("q_lora_rank") or 0)
    queries = heads * (nope + rope)
    matrices = hidden * query_rank + query_rank * queries if query_rank else hidden * queries
    matrices += hidden * (latent + rope) + latent * heads * (nope + values) + heads * values * hidden
    return matrices, latent + query_rank


def _feed_forward(config: Mapping[str, Any], layer: int, hidden: int) -> tuple[int, int]:
    """(all, used by one token) matrix parameters of a layer's feed-forward part: gated, three matrices."""
    dense = 3 * hidden * int(config["intermediate_size"])
    experts = int(
        config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts") or 0
    )
    if not experts or not _is_sparse(config, layer):
        return dense, dense
    width = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    one = 3 * hidden * width
    shared = int(config.get("n_shared_experts") or 0) * one
    router = hidden * experts
    chosen = int(config.get("num_experts_per_tok") or 1)
    return experts * one + shared + router, chosen * one + shared + router


def _is_sparse(config: Mapping[str, Any], layer: int) -> bool:
    """Whether this layer (from 0) has experts: some models keep their first, or every other, layer dense."""
    if layer in (config.get("mlp_only_layers") or ()):
        return False
    if layer < int(config.get("first_k_dense_replace") or 0):
        return False
    step = int(config.get("decoder_sparse_step") or config.get("moe_layer_freq") or 1)
    offset = 1 if config.get("decoder_sparse_step") else 0
    return (layer + offset) % step == 0
