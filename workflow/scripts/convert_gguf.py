#!/usr/bin/env python3
"""Turn a GGUF file into a folder that vLLM serves: safetensors in one dtype, config, tokenizer.

Runs in the server's environment (needs torch, transformers, gguf); knows nothing of servelab.
"""

import argparse
from pathlib import Path


def convert(gguf: Path, output: Path, dtype: str) -> None:
    """Dequantise `gguf` to `dtype` (bfloat16, float16, float32) and save model and tokenizer into `output`."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, name, wanted = str(gguf.parent), gguf.name, getattr(torch, dtype)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    # Newer transformers keep the blocks packed unless told otherwise; older ones always unpack.
    config_class = getattr(transformers, "GgufConfig", None)
    more = {"quantization_config": config_class(dequantize=True)} if config_class else {}
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=wanted, **more)
    packed = [n for n, p in model.named_parameters() if p.dtype != wanted]
    if packed:
        raise SystemExit(f"{gguf}: {len(packed)} weights are not {dtype} after loading, {packed[0]} for one")
    # What is left is an ordinary dense model: take off the marks of the file it came from.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def main() -> None:
    """Parse the command line and convert."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    arguments = parser.parse_args()
    convert(arguments.gguf.resolve(), arguments.output, arguments.dtype)


if __name__ == "__main__":
    main()
