"""Warm-up conversations are tokenized as sessions tokenize them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from miles_core.app.warmup import read_conversations, supervised_sample
from miles_core.errors import DataError
from miles_core.session.tito import TemplateRenderer
from miles_core.session.tokenizer import ChatTokenizer

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"


def test_a_conversation_equals_the_templates_own_render_and_trains_the_assistant_only() -> None:
    chat = ChatTokenizer.load(QUICKSTART / "model")
    messages = read_conversations(QUICKSTART / "warmup.jsonl")[0]
    sample = supervised_sample(chat, TemplateRenderer(chat), messages, "w")
    rendered = chat.tokenizer.apply_chat_template([message.to_chat() for message in messages], tokenize=False)
    assert chat.decode(sample.tokens.tolist()) == rendered.removesuffix("\n")
    trained = chat.decode(sample.tokens[sample.loss_mask == 1].tolist())
    assert trained == f"{messages[1].text}<|im_end|>{messages[3].text}<|im_end|>"


def test_the_quickstarts_warm_up_tells_nothing_about_answers() -> None:
    """Every combination of asked key, called key, shown digit and answered digit comes exactly once."""
    rows = [[m.text for m in messages] for messages in read_conversations(QUICKSTART / "warmup.jsonl")]
    assert len({tuple(row) for row in rows}) == len(rows) == 8 * 8 * 4 * 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no conversation"),
        ("not json", ":1: expected"),
        (json.dumps({"messages": []}), ":1:"),
        (json.dumps({"messages": [{"role": "user", "content": "hi"}]}), "an assistant's turn"),
        (json.dumps({"prompt": "hi"}), ":1: expected"),
    ],
)
def test_malformed_files_name_the_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "w.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        read_conversations(tmp_path / "w.jsonl")


def test_bytes_that_are_not_utf_8_name_the_line(tmp_path: Path) -> None:
    (tmp_path / "w.jsonl").write_bytes(b'\n{"messages": [{"role": "user", "content": "caf\xe9"}]}\n')
    with pytest.raises(DataError, match=r"w\.jsonl:2: expected .*UTF-8.*0xe9"):
        read_conversations(tmp_path / "w.jsonl")


def test_a_missing_file_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"warmup\.data"):
        read_conversations(tmp_path / "none.jsonl")
