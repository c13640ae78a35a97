"""A model directory without weights, whose tokenizer is a byte-level BPE learned from the documentation."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

from miles_core.errors import MilesError
from miles_core.session.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = Path(__file__).parents[2] / "docs"
VOCABULARY = 16384  # at most; the documentation gives fewer
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END = 2
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTEXT = 131072


def write_model(folder: Path) -> ChatTokenizer:
    """Write tokenizer, ChatML template and ``config.json`` into ``folder``; returns the tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    words = Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text_source()], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[END], additional_special_tokens=list(SPECIAL)
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    config = {"vocab_size": len(fast), "max_position_embeddings": CONTEXT}
    (folder / "config.json").write_text(json.dumps(config))
    return ChatTokenizer.load(folder)


def text_source() -> str:
    """The documentation, which messages and answers are cut from.

    Raises:
        MilesError: if it is not there.
    """
    texts = [file.read_text("utf-8") for file in sorted(TEXTS.rglob("*.md"))]
    if not texts:
        raise MilesError(f"there is no documentation in {TEXTS}", remedy="Run this in a checkout of the repository.")
    return "\n".join(texts)


def passages(length: int, seed: int) -> Iterator[str]:
    """Passages of so many characters, without end; each is a text of its own in memory."""
    text, draw = text_source(), random.Random(seed)
    while True:
        at = draw.randrange(len(text) - length)
        yield text[at : at + length]
