"""What generated tokens spell: messages of the policy, whole or while they come."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import xxhash

from miles_core.session.parsing.reader import TurnReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.session.parsing.turn import TurnParser
    from miles_core.session.tokenizer import ChatTokenizer
    from miles_core.types import Generation, Message

_ID_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 9  # the strictest form of a call's id that templates ask for


class TurnDecoder:
    """Reads the generations of one session; ``name``, which no other session has, makes the ids of its calls."""

    def __init__(self, tokenizer: ChatTokenizer, parser: TurnParser, name: str) -> None:
        self._tokenizer = tokenizer
        self._parser = parser
        self._name = name
        self._read = count()

    def stop(self, generation: Generation) -> int | None:
        """The stop token with which a generation ends, if it does."""
        # By the token, not by the reason: a stop token sampled exactly at the limit is reported as "length".
        last = int(generation.output_ids[-1]) if len(generation.output_ids) else None
        return last if last in self._tokenizer.stop_token_ids else None

    def message(self, generation: Generation, *, calls: bool) -> Message:
        """The message, without the stop token or the text that ended it; calls stay text unless ``calls``.

        Raises:
            SessionError: if a parser fails.
        """
        ids = generation.output_ids.tolist()
        text = self._tokenizer.decode(ids if self.stop(generation) is None else ids[:-1])
        matched = generation.finish_reason.matched
        if isinstance(matched, str) and matched in text:
            text = text[: text.index(matched)]
        turn = next(self._read)
        return self._parser.message(text, calls=calls, call_id=lambda index: _call_id(f"{self._name}:{turn}:{index}"))

    def reader(self, *, calls: bool, stop: Sequence[str]) -> TurnReader:
        """Reads one message while its tokens come; ``stop`` are texts that end it."""
        return TurnReader(
            self._tokenizer.decode,
            self._parser,
            calls=calls,
            stop_ids=self._tokenizer.stop_token_ids,
            stop_texts=stop,
        )


def _call_id(name: str) -> str:
    """An id of nine letters and digits, the same for the same name."""
    value, letters = xxhash.xxh3_64_intdigest(name.encode()), ""
    for _ in range(_ID_LENGTH):
        value, digit = divmod(value, len(_ID_ALPHABET))
        letters += _ID_ALPHABET[digit]
    return letters
