"""The one place that loads a tokenizer and renders its chat template."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles_core.errors import ConfigError, SessionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.types import Message


class ChatTokenizer:
    """A Hugging Face tokenizer with its chat template and the stop tokens of its model directory."""

    def __init__(self, tokenizer: Any, stop_token_ids: Sequence[int]) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "the tokenizer has no chat template",
                remedy="Put a chat_template.jinja beside tokenizer.json, or use an instruction-tuned model.",
            )
        self.tokenizer = tokenizer
        self.stop_token_ids = tuple(stop_token_ids)

    @classmethod
    def load(cls, path: str | Path) -> ChatTokenizer:
        """The tokenizer of a local model directory.

        Raises:
            ConfigError: if the directory or the tokenizer's files are missing.
        """
        directory = Path(path)
        if not (directory / "tokenizer_config.json").is_file():
            raise ConfigError(
                f"no tokenizer in {directory}: expected tokenizer_config.json and tokenizer.json",
                remedy="Set model.path to a local Hugging Face model directory.",
            )
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        return cls(tokenizer, _stop_token_ids(directory, tokenizer))

    @cached_property
    def vocab_size(self) -> int:
        """How many ids the tokenizer knows."""
        return len(self.tokenizer)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool,
    ) -> str:
        """The template's text for a conversation.

        Raises:
            SessionError: if the template refuses it.
        """
        try:
            text = self.tokenizer.apply_chat_template(
                [message.to_chat() for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
            )
        except Exception as error:
            roles = " ".join(message.role for message in messages)
            raise SessionError(
                f"the chat template refuses a conversation of roles [{roles}]: {error}",
                remedy="Check which roles the model's template accepts, and in which order.",
            ) from error
        return str(text)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text that already holds its special tokens."""
        try:
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        except (TypeError, UnicodeError) as error:  # such as a lone surrogate, which is no text
            raise SessionError(f"the tokenizer cannot encode {text[:60]!a}: {error}") from error
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _stop_token_ids(directory: Path, tokenizer: Any) -> list[int]:
    """Stop tokens: the one fact that a chat template does not hold."""
    config = directory / "generation_config.json"
    eos = json.loads(config.read_text("utf-8")).get("eos_token_id") if config.is_file() else None
    ids = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return list(dict.fromkeys(ids))
