"""The one place that loads a tokenizer."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles_core.errors import ConfigError, SessionError
from miles_core.session.memo import Memo
from miles_core.session.template.boundary import Deriver
from miles_core.session.template.encoding import TextEncoder
from miles_core.session.template.ids import IdDeriver
from miles_core.session.template.render import ChatTemplate

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from miles_core.types import Message

_MEMO_CHARACTERS = 1 << 22
_QUICK_CHARACTERS = 1 << 17
_MOST_CHARACTERS_A_TOKEN = 16


class ChatTokenizer:
    """A Hugging Face tokenizer with its chat template and the stop tokens of its model directory.

    The members of a group ask for the same texts, so conversations of plain texts and their ids are remembered.
    """

    def __init__(self, tokenizer: Any, stop_token_ids: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.stop_token_ids = tuple(stop_token_ids)
        self._pieces: Memo[tuple[int, ...]] = Memo(_MEMO_CHARACTERS)
        self._derivers: dict[str, IdDeriver] = {}
        self._ids: Memo[tuple[int, ...]] = Memo(_MEMO_CHARACTERS)

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

    def may_fit(self, characters: int, tokens: int) -> bool:
        """Whether a text of so many characters may have so few tokens; told without tokenizing, which takes seconds.

        Texts that are tokenized quickly always may. Of larger ones so many characters a token are no prose.
        """
        return characters <= max(_QUICK_CHARACTERS, _MOST_CHARACTERS_A_TOKEN * tokens)

    def deriver(self, *, tools: bool = False) -> IdDeriver:
        """What derives prompts and boundaries from the chat template, or from the one for ``tools`` if there is one.

        Raises:
            ConfigError: if there is no chat template.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            raise ConfigError(
                "the tokenizer has no chat template",
                remedy="Put a chat_template.jinja beside tokenizer.json, use an instruction-tuned model, or set "
                "session.renderer, with session.tool_calls and session.reasoning, to code of yours or none.",
            )
        source = str(self.tokenizer.get_chat_template(tools=[{}] if tools else None))
        if source not in self._derivers:
            template = ChatTemplate(source, dict(self.tokenizer.special_tokens_map))
            encoder = TextEncoder(self.tokenizer, source, self.encode)
            self._derivers[source] = IdDeriver(Deriver(template), encoder)
        return self._derivers[source]

    def remembered(self, messages: Sequence[Message], key: Hashable, make: Callable[[], Sequence[int]]) -> list[int]:
        """The ids that ``make`` derives from conversations of plain texts; ``key`` is all else that they depend on."""
        plain = _plain(messages)
        if plain is None:
            return list(make())
        size = sum(len(message.text) for message in messages)
        return list(self._pieces.get((plain, key), lambda: tuple(make()), lambda ids: size + len(ids)))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text that already holds its special tokens."""
        return list(self._ids.get(text, lambda: self._encode(text), len))

    def _encode(self, text: str) -> tuple[int, ...]:
        try:
            return tuple(self.tokenizer.encode(text, add_special_tokens=False))
        except (TypeError, UnicodeError) as error:  # such as a lone surrogate, which is no text
            raise SessionError(f"the tokenizer cannot encode {text[:60]!a}: {error}") from error

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _plain(messages: Sequence[Message]) -> tuple[tuple[str | None, ...], ...] | None:
    """What tells conversations of plain texts apart; ``None`` if one of the messages holds more."""
    if not all(isinstance(m.content, str) and not m.tool_calls and not m.extra for m in messages):
        return None
    return tuple((m.role, m.text, m.name, m.tool_call_id) for m in messages)


def _stop_token_ids(directory: Path, tokenizer: Any) -> list[int]:
    """Stop tokens: the one fact that a chat template does not hold."""
    config = directory / "generation_config.json"
    eos = json.loads(config.read_text("utf-8")).get("eos_token_id") if config.is_file() else None
    ids = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return list(dict.fromkeys(ids))
