"""A turn that is read token by token gives, joined, the message of the whole turn."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from miles_core.errors import SessionError
from miles_core.session.parsing.reader import TurnReader
from miles_core.session.parsing.turn import TurnParser
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import Message

from .chats import call, calling, chat, parser_of, written
from .test_reasoning import SHOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MODEL = Path(__file__).parents[3] / "examples" / "quickstart" / "model"
PARSER = parser_of(chat(SHOWN))


def by_bytes(ids: Sequence[int]) -> str:
    """Every byte is a token: characters of several bytes are split."""
    return bytes(ids).decode("utf-8", errors="replace")


def told(
    ids: Sequence[int], decode: Callable[[Sequence[int]], str], parser: TurnParser = PARSER, size: int = 1
) -> tuple[Message, list[tuple[str, str]]]:
    """The message, and what each delta held."""
    reader = TurnReader(decode, parser, calls=True)
    deltas = [reader.feed(ids[at : at + size]) for at in range(0, len(ids), size)]
    message = parser.message(decode(ids), calls=True, call_id=str)
    deltas.append(reader.finish(message))
    assert deltas[-1].tool_calls == message.tool_calls
    return message, [(delta.reasoning, delta.content) for delta in deltas]


def check(message: Message, deltas: list[tuple[str, str]]) -> None:
    assert "".join(content for _, content in deltas) == message.text
    assert "".join(reasoning for reasoning, _ in deltas) == message.extra.get("reasoning_content", "")


@given(text=st.text(max_size=30), size=st.integers(1, 5), thought=st.booleans())
@settings(max_examples=80, deadline=None)
def test_characters_that_are_split_between_tokens_come_whole(text: str, size: int, thought: bool) -> None:
    whole = f"<think>\n{text}\n</think>\n\n{text}" if thought else text
    message, deltas = told(list(whole.encode("utf-8", "replace")), by_bytes, size=size)
    check(message, deltas)
    assert "\ufffd" in text or not any("\ufffd" in part for delta in deltas for part in delta)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_text_are_read_as_the_decoder_reads_them(ids: bytes) -> None:
    check(*told(list(ids), by_bytes, TurnParser()))


def test_content_comes_while_it_is_generated_and_calls_at_the_end() -> None:
    text = written(chat(SHOWN), content="See: 🎉", reasoning_content="One two", tool_calls=[call("look", {"a": 1})])
    message, deltas = told(list(text.encode()), by_bytes)
    check(message, deltas)
    assert (message.text, len(message.tool_calls)) == ("See: 🎉", 1)
    assert deltas[-1] == ("", "")
    assert sum(1 for reasoning, _ in deltas if reasoning) > 3


def test_a_decoder_that_drops_the_first_space_is_asked_with_what_is_before() -> None:
    """As SentencePiece does: the space of a word belongs to its token, and the first one of a text is none."""
    words = ["▁hello", "▁world", "▁", "!", "<unk>"]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    for ids in ([0, 1, 3, 1], [2, 2, 0, 2, 1], [3, 0, 0]):
        message, deltas = told(ids, lambda each: tokenizer.decode(list(each), skip_special_tokens=False), TurnParser())
        check(message, deltas)


def test_a_real_tokenizer_gives_the_same_text_in_pieces() -> None:
    tokenizer = ChatTokenizer.load(MODEL)
    parser = parser_of(calling("object"))
    text = written(calling("object"), content="2 + 3 is 5.", tool_calls=[call("look", {"a": "b c"})])
    check(*told(tokenizer.encode(text), tokenizer.decode, parser))


def test_stops_are_no_text() -> None:
    reader = TurnReader(by_bytes, TurnParser(), calls=False, stop_ids=[0])
    assert reader.feed([*b"ab", 0]).content == "ab"
    assert reader.finish(Message(role="assistant", content="ab")).content == ""


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), max_size=2), st.integers(1, 3))
def test_a_stop_text_is_never_told_whatever_pieces_it_comes_in(text: str, stops: list[str], size: int) -> None:
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    spoken = text[: min(ends, default=len(text))]  # the engine ends with the first one that is complete
    said = min((spoken[: spoken.index(stop)] for stop in stops if stop in spoken), key=len, default=spoken)
    reader = TurnReader(by_bytes, TurnParser(), calls=False, stop_texts=stops)
    told = "".join(reader.feed(spoken.encode()[at : at + size]).content for at in range(0, len(spoken), size))
    assert said.startswith(told)
    assert told + reader.finish(Message(role="assistant", content=said)).content == said


def test_a_message_that_does_not_go_on_from_what_was_told_is_refused() -> None:
    reader = TurnReader(by_bytes, TurnParser(), calls=False)
    reader.feed(b"abc")
    with pytest.raises(SessionError, match="does not begin with what was streamed"):
        reader.finish(Message(role="assistant", content="xyz"))


def test_a_long_turn_takes_well_under_a_second() -> None:
    text = "<think>\n" + "word after word, " * 600 + "\n</think>\n\n" + "word <b>after</b> word " * 600
    ids = list(range(4000))
    pieces = [text[index * len(text) // 4000 : (index + 1) * len(text) // 4000] for index in ids]
    reader = TurnReader(lambda each: "".join(pieces[index] for index in each), PARSER, calls=True)
    start = time.process_time()
    for each in ids:
        reader.feed([each])
    assert time.process_time() - start < 1


def test_parsing_grows_with_the_turn_and_not_with_its_square() -> None:
    seen: list[int] = []

    class Counting(TurnParser):
        def settled(self, text: str, *, calls: bool) -> tuple[str, str]:
            seen.append(len(text))
            return super().settled(text, calls=calls)

    def characters_parsed(length: int) -> int:
        seen.clear()
        reader = TurnReader(by_bytes, Counting(), calls=True)
        said = "".join(reader.feed(b"x").content for _ in range(length))
        assert length - len(said) < length / 100, "the text still comes while it is generated"
        return sum(seen)

    assert characters_parsed(16_000) < 3 * characters_parsed(8_000)


def test_a_long_turn_of_broken_characters_is_no_slower() -> None:
    reader = TurnReader(by_bytes, TurnParser(), calls=True)
    start = time.process_time()
    for _ in range(20_000):
        reader.feed([0x80])
    assert time.process_time() - start < 1
