"""A real tokenizer without files: printable characters, and a chat template with a marker at both ends."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

from miles_core.session.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from pathlib import Path

_PAD, _START, _END = "<|pad|>", "<|im_start|>", "<|im_end|>"
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def toy_tokenizer() -> ChatTokenizer:
    """A tokenizer of 103 tokens: three markers, then the printable characters; others become ``?``."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = string.printable
    vocabulary = {token: number for number, token in enumerate((_PAD, _START, _END, *characters))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))  # noqa: S106 - a token, no password
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer_class: Any = PreTrainedTokenizerFast  # it is not typed
    fast = tokenizer_class(
        tokenizer_object=tokenizer,
        eos_token=_END,
        pad_token=_PAD,
        unk_token="?",  # noqa: S106 - a token, no password
        additional_special_tokens=[_START],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = _TEMPLATE
    return ChatTokenizer(fast, [vocabulary[_END]])


def save_tokenizer(tokenizer: ChatTokenizer, folder: Path) -> None:
    """Write it beside a model, as Hugging Face directories hold it."""
    tokenizer.tokenizer.save_pretrained(folder)
