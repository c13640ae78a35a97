"""Write the example's model, tasks and warm-up conversations again: ``python examples/agent_tools/make.py``."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig

HERE = Path(__file__).parent
KEYS, VALUES = "cde", "089"
SUMS = [(a, b) for a in (1, 2) for b in (3, 5)]  # all different: a call that is right for two of them is a dead end
RESULTS = VALUES + "4567"
TOOLS = ["get", "add"]

SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
# What is written the same way each time is one token: spelled out, it dilutes a tiny model's early attention.
WORDS = [
    "system", "user", "assistant", "tool", *TOOLS, "<tool_call>", "</tool_call>",
    '{"name": "', '", "arguments": {', '"key": "', '"a": ', ', "b": ', '"}}', "}}",
]  # fmt: skip
CHARACTERS = ["\n", *map(chr, range(32, 127))]
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool.function.name }}{{ '' if loop.last else ' ' }}{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments if call.function.arguments is string \
else call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {token: index for index, token in enumerate(SPECIAL + WORDS + CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    longest_first = "|".join(map(re.escape, sorted(WORDS, key=len, reverse=True)))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(longest_first + r"|[\s\S]"), behavior="isolated")
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


def tasks() -> list[dict[str, object]]:
    """Every key with every value, so that a question never tells its answer, and each sum twice."""
    gets = [{"id": f"{key}{value}", "prompt": f"{key}?", "label": value} for key in KEYS for value in VALUES]
    adds = [{"id": f"{a}+{b}", "prompt": f"{a}+{b}?", "label": str(a + b)} for a, b in SUMS]
    again = [{**add, "id": f"{add['id']} again"} for add in adds]  # as many sums as keys, or the policy forgets to add
    return gets + adds + again


def call(name: str, arguments: dict[str, object]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def conversation(asked: str, called: str, shown: str) -> dict[str, object]:
    texts = [("system", " ".join(TOOLS)), ("user", asked), ("assistant", called), ("tool", shown), ("assistant", shown)]
    return {"messages": [{"role": role, "content": content} for role, content in texts]}


def warmup() -> list[dict[str, object]]:
    """Every question with every call and every result: what is called says nothing of what was asked."""
    questions = [*(f"{key}?" for key in KEYS), *(f"{a}+{b}?" for a, b in SUMS)]
    calls = [*(call("get", {"key": key}) for key in KEYS), *(call("add", {"a": a, "b": b}) for a, b in SUMS)]
    rows = [conversation(*combination) for combination in itertools.product(questions, calls, RESULTS)]
    random.Random(0).shuffle(rows)
    return rows


def main() -> None:
    directory = HERE / "model"
    fast = tokenizer()
    fast.save_pretrained(directory)
    model(len(fast)).save_pretrained(directory)
    generation = {"eos_token_id": 2, "pad_token_id": 0}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", "utf-8")
    write_jsonl(HERE / "tasks.jsonl", tasks())
    write_jsonl(HERE / "warmup.jsonl", warmup())


if __name__ == "__main__":
    main()
