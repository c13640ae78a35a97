"""Each token id is spelled once: as text, or as bytes where it is a part of a character."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from miles_core.session.tokenizer import ChatTokenizer
from miles_core.telemetry.report.vocabulary import Spelling, vocabulary_of

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart" / "model"


@pytest.fixture(scope="module")
def byte_level():
    """A real byte-level BPE tokenizer that has seen no accents and no emoji."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(["the key the value"], trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet))
    return tokenizer


def test_pieces_of_byte_level_bpe_that_are_part_of_a_character_are_bytes(byte_level):
    spelling = Spelling(lambda ids: byte_level.decode(list(ids)), byte_level.id_to_token)
    ids = byte_level.encode("the é 🙂").ids
    vocabulary = vocabulary_of([*ids, *ids], spelling)
    raw = "".join(vocabulary.raw.get(token, "") for token in ids)
    assert bytes.fromhex(raw).decode() == "é🙂"
    assert "the" in vocabulary.texts.values()
    assert "\ufffd" not in "".join(vocabulary.texts.values())


def test_byte_fallback_pieces_are_bytes_and_a_real_replacement_character_is_text():
    pieces = {0: "<0xE2>", 1: "\u2581a", 2: "ï¿½"}
    texts = {0: "\ufffd", 1: " a", 2: "\ufffd"}
    vocabulary = vocabulary_of(pieces, Spelling(lambda ids: texts[ids[0]], pieces.__getitem__))
    assert vocabulary.raw == {0: "e2"}
    assert vocabulary.texts == {1: " a", 2: "\ufffd"}


def test_special_tokens_are_spelled_and_ids_beyond_the_vocabulary_are_left_out():
    chat = ChatTokenizer.load(QUICKSTART)
    spelling = Spelling(chat.decode, lambda token: str(chat.tokenizer.convert_ids_to_tokens(token)))
    vocabulary = vocabulary_of([2, -5], spelling)
    assert vocabulary.texts == {2: "<|im_end|>"}


def test_each_id_is_decoded_once():
    asked = []
    vocabulary_of([3, 3, 1, 3], Spelling(lambda ids: asked.append(ids) or "x", str))
    assert asked == [[1], [3]]
