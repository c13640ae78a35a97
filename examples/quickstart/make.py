"""Write the quickstart's model, tasks and warm-up conversations again: ``python examples/quickstart/make.py``."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig

HERE = Path(__file__).parent
KEYS, DIGITS = "abcdefgh", "0123"
# Role names are one token each: spelled out, they dilute a tiny model's early attention.
SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
ROLES = ["system", "user", "assistant", "tool"]
CHARACTERS = ["\n", *map(chr, range(32, 127))]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {token: index for index, token in enumerate(SPECIAL + ROLES + CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(ROLES) + r"|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = TEMPLATE
    return fast


def model(vocab_size: int) -> Qwen3MoeConfig:
    return Qwen3MoeConfig(
        architectures=["Qwen3MoeForCausalLM"],
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        norm_topk_prob=True,
        max_position_embeddings=512,
        initializer_range=0.2,  # 0.02 never learns at this size
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=2,
        bos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def conversation(asked: str, called: str, shown: str, answered: str) -> dict[str, object]:
    turns = [("user", f"value of {asked}?"), ("assistant", f"get {called}"), ("tool", shown), ("assistant", answered)]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def main() -> None:
    directory = HERE / "model"
    fast = tokenizer()
    fast.save_pretrained(directory)
    model(len(fast)).save_pretrained(directory)
    generation = {"eos_token_id": 2, "pad_token_id": 0}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", "utf-8")
    # Every key with every value, so that a question never tells its answer.
    write_jsonl(
        HERE / "tasks.jsonl",
        [{"id": f"{key}{digit}", "prompt": f"value of {key}?", "label": digit} for key in KEYS for digit in DIGITS],
    )
    # Every combination once: what is called and answered is independent of what was asked and shown.
    rows = [conversation(*combination) for combination in itertools.product(KEYS, KEYS, DIGITS, DIGITS)]
    random.Random(0).shuffle(rows)
    write_jsonl(HERE / "warmup.jsonl", rows)


if __name__ == "__main__":
    main()
