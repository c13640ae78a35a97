"""How token ids are spelled on the page: each distinct id is decoded once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_REPLACEMENT = "\ufffd"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Spelling:
    """A tokenizer as the report needs it: ``decode`` gives the text of ids, ``piece`` the vocabulary's own entry."""

    decode: Callable[[Sequence[int]], str]
    piece: Callable[[int], str]


@dataclass(frozen=True)
class Vocabulary:
    """``texts`` of whole pieces, and ``raw`` bytes (as hex) of pieces that are a part of a character, by id."""

    texts: dict[int, str]
    raw: dict[int, str]


def vocabulary_of(ids: Iterable[int], spelling: Spelling) -> Vocabulary:
    """The spelling of each id; one that the tokenizer does not know has none."""
    texts: dict[int, str] = {}
    raw: dict[int, str] = {}
    for token in sorted(set(ids)):
        try:
            text = spelling.decode([token])
            part = _part_of_character(spelling.piece(token)) if _REPLACEMENT in text else None
        except Exception:  # noqa: BLE001, S112 - tokenizers raise anything for ids beyond their vocabulary
            continue
        if part is None:
            texts[token] = text
        else:
            raw[token] = part.hex()
    return Vocabulary(texts, raw)


def _part_of_character(piece: str) -> bytes | None:
    """The bytes of a vocabulary entry that is no whole text: byte fallback as ``<0xE2>``, or byte-level BPE."""
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes.fromhex(match[1])
    table = _byte_level_table()
    if not piece or any(character not in table for character in piece):
        return None
    data = bytes(table[character] for character in piece)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return data
    return None


@cache
def _byte_level_table() -> dict[str, int]:
    """The byte of each character of byte-level BPE (GPT-2): printable bytes are themselves, others from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
