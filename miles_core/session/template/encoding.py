"""Ids of texts that continue other texts, where some spans must not become special tokens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from miles_core.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Texts after which a tokenizer neither strips nor adds anything; the first that does not merge is used.
_MARKUP = re.compile(r"<\|.*\|>")
_PLAIN_ANCHORS = ("a", ".", "\n", "-")


class TextEncoder:
    """Encodes with a Hugging Face tokenizer, special tokens in the text included.

    Special are the tokens that the tokenizer says are, those written like ``<|this|>``, and added ones that the source
    of the ``template`` holds: some tokenizers do not flag ``</think>``. ``encode`` stands in for the tokenizer's own.
    """

    def __init__(self, tokenizer: Any, template: str = "", encode: Callable[[str], list[int]] | None = None) -> None:
        self._tokenizer = tokenizer
        self._remembered = encode
        added = {
            token.content: token.special or _MARKUP.fullmatch(token.content) or token.content in template
            for token in tokenizer.added_tokens_decoder.values()
            if token.content.strip()
        }
        texts = {text for text, special in added.items() if special} | set(tokenizer.all_special_tokens)
        texts -= {_only_unknown(tokenizer)}  # it controls nothing, and may be as plain as a question mark
        self._special_ids = {tokenizer.convert_tokens_to_ids(text) for text in texts}
        self._special = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))) if texts else None

    def specials(self, text: str) -> list[str]:
        """The special tokens that ``text`` would hold if it were encoded."""
        return self._special.findall(text) if self._special else []

    def whole(self, text: str, spans: Mapping[str, str]) -> list[int]:
        """Ids of a text from its start on; see :meth:`after` for ``spans``."""
        return self._pieces(text, spans, None)

    def after(self, anchor: str | None, text: str, spans: Mapping[str, str]) -> list[int]:
        """Ids of ``text`` as it continues ``anchor``, a special token, or plain text where that is ``None``.

        Special tokens may strip what follows, and SentencePiece starts a text with a space: the anchor is encoded with
        the text and taken away. ``spans`` maps words in ``text`` to what users typed there: only around those the text
        is split, and what they hold becomes no special token.
        """
        if anchor is not None and self.specials(anchor) != [anchor]:
            anchor = None  # a stop of ordinary text
        return self._pieces(text, spans, anchor if anchor is not None else "")

    def _pieces(self, text: str, spans: Mapping[str, str], anchor: str | None) -> list[int]:
        """``anchor``: a special token, ``""`` for plain text before, ``None`` for the start of a text."""
        if not spans:
            return self._piece(text, anchor)
        ids: list[int] = []
        for index, piece in enumerate(re.split("(" + "|".join(map(re.escape, spans)) + ")", text)):
            if index % 2:
                ids += self._typed(spans[piece])
            elif piece:
                ids += self._piece(piece, "" if index else anchor)
        return ids

    def _piece(self, text: str, anchor: str | None) -> list[int]:
        if anchor is None:
            return self._encode(text)
        if anchor:
            lead, ids = self._encode(anchor), self._encode(anchor + text)
            if ids[: len(lead)] != lead:
                raise SessionError(
                    f"the tokenizer merges {anchor!r} with the text that follows it",
                    remedy="Declare the stop token as a special token of the tokenizer.",
                )
            return ids[len(lead) :]
        return self._after_plain(text, split=False)

    def _typed(self, text: str) -> list[int]:
        ids = self._after_plain(text, split=True)
        if self._special_ids.intersection(ids):  # only flagged tokens are split; what is left of others is no token
            ids = [*self._after_plain(text[:1], split=True), *self._after_plain(text[1:], split=True)]
        if self._special_ids.intersection(ids):
            raise SessionError(
                f"the tokenizer makes a special token of the text {text!r} in a message",
                remedy="Remove the text from the message: the model would take it for the template's own.",
            )
        return ids

    def _after_plain(self, text: str, *, split: bool) -> list[int]:
        for anchor in _PLAIN_ANCHORS:
            lead, ids = self._encode(anchor), self._encode(anchor + text, split=split)
            if lead and ids[: len(lead)] == lead:
                return ids[len(lead) :]
        return self._encode(text, split=split)

    def _encode(self, text: str, *, split: bool = False) -> list[int]:
        if not split and self._remembered is not None:
            return self._remembered(text)
        try:
            options = {"split_special_tokens": True} if split else {}
            return list(self._tokenizer.encode(text, add_special_tokens=False, **options))
        except (TypeError, UnicodeError) as error:  # such as a lone surrogate, which is no text
            raise SessionError(f"the tokenizer cannot encode {text[:60]!a}: {error}") from error


def _only_unknown(tokenizer: Any) -> str | None:
    """The token for unknown text, where it is no other special token as well."""
    roles = dict(tokenizer.special_tokens_map)
    unknown: str | None = roles.pop("unk_token", None)
    others = [each for texts in roles.values() for each in ([texts] if isinstance(texts, str) else texts)]
    return None if unknown in others else unknown
