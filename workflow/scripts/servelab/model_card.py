"""What a model is made of, from its config.json: parameters, KV bytes per token, FLOPs and bytes of a step.

Everything here is calculated, and only where the formula holds: a value that does not follow from the config
is a `NotCalculated` with a reason, never a guess. Reasons are text ids under `reasons.`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from servelab import model_parameters
from servelab.model_parameters import Parameters

DTYPE_BYTES = {
    "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1,
}  # fmt: skip
# fp8_ds_mla: 512 latent bytes, 16 of scales, 64 rope values of 2 bytes (vLLM, flashmla_sparse.py)
_MLA_PACKED_BYTES = 656
_OTHER_STATE = ("layers_block_type", "attn_type_list", "hybrid_override_pattern", "ssm_cfg", "mamba_d_state")
_OTHER_STATE_TYPES = (
    "mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "zamba", "zamba2", "rwkv", "recurrent_gemma",
)  # fmt: skip


@dataclass(frozen=True)
class NotCalculated:
    """Why a formula does not apply: a text id under `reasons.` and the values it is filled with."""

    reason: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelCard:
    """A model's dimensions (counts), and what follows from them.

    dtype: of the weights as the config names it. max_positions: longest context, 0 if not said. tied: whether
    the output projection is the embedding table. quantization: method of quantised weights, "" for none.
    parameters: counts by use, or why they were not calculated. config: the text model's part of config.json.
    """

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    dtype: str
    tied: bool
    quantization: str
    parameters: Parameters | NotCalculated
    config: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @property
    def params(self) -> int | None:
        """All parameters, embeddings included (tied ones once); None where not calculated."""
        return self.parameters.total if isinstance(self.parameters, Parameters) else None

    @property
    def is_mla(self) -> bool:
        """Multi-head latent attention: one latent vector a token and layer instead of keys and values."""
        return bool(self.config.get("kv_lora_rank"))

    def as_served(self, options: Mapping[str, Any], said: str | None = None) -> "ModelCard":
        """The same model in the dtype and the quantisation that a server runs it in.

        options: the server's, names with underscores. said: the dtype in the server's own log, None if it is not
        known. A dtype that the options name stands, else what the server said, else the config's; only a float32
        checkpoint is not run as it is: vLLM's «auto» takes 16 bits (vllm/config/model.py, _resolve_auto_dtype).
        """
        given = options.get("dtype")
        dtype = said or ("bfloat16" if self.dtype in ("float32", "float") else self.dtype)
        if given not in (None, "", "auto"):
            dtype = str(given)
        quantization = str(options.get("quantization") or self.quantization)
        return replace(self, dtype=dtype, quantization=quantization)

    def kv_bytes_per_token(
        self,
        kv_dtype: str | None = "auto",
        skipped_layers: int = 0,
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
    ) -> float | NotCalculated:
        """Bytes that one token takes in the KV cache of one GPU (or CPU), or why it is not calculated.

        2 × layers × KV heads × head_dim × dtype bytes: keys and values of every layer (Pope et al. 2022,
        «Efficiently scaling transformer inference», 3.3). With latent attention layers × (kv_lora_rank +
        qk_rope_head_dim) × dtype bytes, keys and values sharing one vector (DeepSeek-V2, arXiv 2405.04434,
        2.1). kv_dtype: the server's kv_cache_dtype; "auto" or None is the model's own. skipped_layers: layers
        that the server keeps in another dtype. tensor_parallel: KV heads are split over so many GPUs, never
        below one each. pipeline_parallel: layers are split over so many stages, the same number for each.
        """
        reason = self._kv_varies(skipped_layers)
        if reason is not None:
            return reason
        if self.layers % pipeline_parallel:
            return NotCalculated("kv_uneven_stages", {"layers": self.layers, "stages": pipeline_parallel})
        layers = self.layers // pipeline_parallel
        name = self.dtype if kv_dtype in (None, "", "auto") else str(kv_dtype)
        if self.is_mla and name == "fp8_ds_mla":
            return float(layers * _MLA_PACKED_BYTES)
        size = DTYPE_BYTES.get(name)
        if size is None:
            return NotCalculated("kv_dtype_unknown", {"dtype": name})
        if self.is_mla:
            width = int(self.config["kv_lora_rank"]) + int(self.config.get("qk_rope_head_dim", 0))
            return float(layers * width * size)
        heads = max(1, -(-self.kv_heads // tensor_parallel))
        return float(2 * layers * heads * self.head_dim * size)

    def weight_bytes(self) -> float | NotCalculated:
        """Bytes of all weights in the dtype of the config; not calculated for quantised weights."""
        if isinstance(self.parameters, NotCalculated):
            return self.parameters
        size = self._weight_size()
        return size if isinstance(size, NotCalculated) else float(self.parameters.total * size)

    def flops_per_prefill_token(self, context: float) -> float | NotCalculated:
        """Floating-point operations to read in one prompt token that attends to `context` tokens.

        2 per active matrix parameter, plus 4 × layers × heads × head_dim × context for scores and weighted
        values (Kaplan et al. 2020, arXiv 2001.08361, 2.1; Chowdhery et al. 2022, arXiv 2204.02311, appendix
        B, of which the forward pass is a third). Embedding look-ups cost nothing; the output projection is
        left out, since a server needs it for the last token only. A lower bound of what any engine must do. A
        prompt of n tokens has a mean context of (n + 1) / 2.
        """
        if isinstance(self.parameters, NotCalculated):
            return self.parameters
        return 2.0 * self.parameters.matrices_active + self._attention_flops() * context

    def flops_per_decode_token(self, context: float) -> float | NotCalculated:
        """As for a prompt token, with the output projection, which every generated token needs."""
        prefill = self.flops_per_prefill_token(context)
        if isinstance(prefill, NotCalculated):
            return prefill
        return prefill + 2.0 * self.vocab * self.hidden

    def step_weight_bytes(self) -> float | NotCalculated:
        """Bytes of weights that one decode step reads at least: active matrices and the output projection."""
        if isinstance(self.parameters, NotCalculated):
            return self.parameters
        size = self._weight_size()
        if isinstance(size, NotCalculated):
            return size
        return float((self.parameters.matrices_active + self.vocab * self.hidden) * size)

    def bytes_per_decode_step(
        self, batch: float, context: float, kv_dtype: str | None = "auto"
    ) -> float | NotCalculated:
        """Bytes that one decode step moves at least, for `batch` requests with `context` tokens each.

        Weights once, whatever the batch, and every request's KV cache (Pope et al. 2022, 2; of a mixture of
        experts the experts of one token: a lower bound).
        """
        weights, kv = self.step_weight_bytes(), self.kv_bytes_per_token(kv_dtype)
        if isinstance(weights, NotCalculated):
            return weights
        return kv if isinstance(kv, NotCalculated) else weights + batch * context * kv

    def _weight_size(self) -> int | NotCalculated:
        if self.quantization:
            return NotCalculated("weights_quantised", {"method": self.quantization})
        size = DTYPE_BYTES.get(self.dtype)
        return NotCalculated("weight_dtype_unknown", {"dtype": self.dtype}) if size is None else size

    def _attention_flops(self) -> float:
        """FLOPs of one query against one key and value, all layers."""
        if self.is_mla:
            keys = int(self.config.get("qk_nope_head_dim", 0)) + int(self.config.get("qk_rope_head_dim", 0))
            return 2.0 * self.layers * self.heads * (keys + int(self.config.get("v_head_dim", 0)))
        kinds = self.config.get("layer_types") or ["full_attention"] * self.layers
        full = sum(1 for kind in kinds if kind in ("full_attention", "attention"))
        if self._sliding_window() and not self.config.get("layer_types"):
            full = 0  # every layer looks at a window only: the bound keeps the matrices
        return 4.0 * full * self.heads * self.head_dim

    def _sliding_window(self) -> int:
        if self.config.get("use_sliding_window") is False:
            return 0
        return int(self.config.get("sliding_window") or 0)

    def _kv_varies(self, skipped_layers: int) -> NotCalculated | None:
        """Why bytes per token are not one number for this model; None where they are."""
        kinds = set(self.config.get("layer_types") or ())
        if self.config.get("is_encoder_decoder"):
            return NotCalculated("kv_encoder_decoder")
        recurrent = kinds - {"full_attention", "attention", "sliding_attention", "chunked_attention"}
        hybrid = any(self.config.get(name) for name in _OTHER_STATE)
        if recurrent or hybrid or self.model_type in _OTHER_STATE_TYPES:
            return NotCalculated("kv_hybrid", {"model_type": self.model_type})
        if kinds & {"sliding_attention", "chunked_attention"} or (not kinds and self._sliding_window()):
            return NotCalculated("kv_sliding_window", {"window": self._sliding_window() or None})
        if self.config.get("num_kv_shared_layers"):
            return NotCalculated("kv_shared_layers", {"layers": self.config["num_kv_shared_layers"]})
        if self.config.get("index_topk"):
            return NotCalculated("kv_sparse_index")
        if skipped_layers:
            return NotCalculated("kv_skipped_layers", {"layers": skipped_layers})
        return None


def from_folder(path: Path) -> ModelCard | None:
    """The card of a model folder; None if it holds no config.json. Raises ValueError for one that is no model's."""
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        return None
    return from_config(json.loads(file.read_text(encoding="utf-8")))


def from_config(config: Mapping[str, Any]) -> ModelCard:
    """The card of a config.json's content. Raises ValueError naming the key that is missing or no positive count."""
    text = config.get("text_config")
    model = {**config, **text} if isinstance(text, Mapping) else dict(config)
    hidden, heads = _count(model, "hidden_size", "n_embd"), _count(model, "num_attention_heads", "n_head")
    layers = _count(model, "num_hidden_layers", "n_layer")
    dtype = str(model.get("dtype") or model.get("torch_dtype") or "").removeprefix("torch.")
    quantized = model.get("quantization_config")
    method = str(quantized.get("quant_method", "unknown")) if isinstance(quantized, Mapping) else ""
    head_dim = int(model.get("head_dim") or hidden // heads)
    kv_heads = int(model.get("num_key_value_heads") or heads)
    vocab = _count(model, "vocab_size")
    model_type = str(model.get("model_type", ""))
    tied = bool(model.get("tie_word_embeddings", model_type in model_parameters.TIED_BY_DEFAULT))
    counts = model_parameters.count(model, layers, hidden, heads, kv_heads, head_dim, vocab, tied)
    return ModelCard(
        model_type=model_type,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        max_positions=int(model.get("max_position_embeddings") or model.get("n_positions") or 0),
        dtype=dtype,
        tied=tied,
        quantization=method,
        parameters=counts or NotCalculated("parameters_unknown", {"model_type": model_type or "?"}),
        config=model,
    )


def _count(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise ValueError(f"config.json: {names[0]} is missing or no positive number")
