"""From rows to tasks: columns, labels, messages, images, and what is refused."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import ImagePart, Message, Task, TextPart
from miles_plugins.sources.columns import Columns
from miles_plugins.sources.row_error import RowError
from miles_plugins.sources.task_rows import TaskRows

MODEL = Path(__file__).parents[2] / "examples" / "quickstart" / "model"


def task(row, *, columnar=False, folder=Path(), **columns) -> Task:
    mapping = Columns.model_validate(columns) if columns else None
    return TaskRows(mapping, columnar=columnar).task(row, folder=folder, default_id="default")


def test_all_known_keys_arrive(tmp_path):
    (tmp_path / "a.png").write_bytes(b"png")
    row = {
        "id": 7,
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "label": "l",
        "images": ["a.png", "https://example.org/b.png", "data:image/png;base64,AA=="],
        "tools": [{"type": "function"}],
        "environment": "chess",
        "metadata": {"big": 123456789012345678901},
    }
    made = task(row, folder=tmp_path)
    assert (made.id, made.label, made.environment) == ("7", "l", "chess")
    assert [message.role for message in made.messages] == ["system", "user"]
    assert made.images == (str(tmp_path / "a.png"), "https://example.org/b.png", "data:image/png;base64,AA==")
    assert made.tools == ({"type": "function"},)
    assert made.metadata["big"] == 123456789012345678901


def test_a_prompt_may_be_text_or_messages_with_the_same_token_ids():
    tokenizer = ChatTokenizer.load(MODEL)
    user = {"role": "user", "content": "hi"}
    rows = [{"prompt": "hi"}, {"prompt": [user]}, {"messages": [user]}, {"prompt": None, "messages": [user]}]
    chats = [[message.to_chat() for message in task(row).messages] for row in rows]
    render = partial(tokenizer.tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False)
    ids = [tokenizer.encode(render(chat)) for chat in chats]
    assert ids[0]
    assert ids == [ids[0]] * 4


@pytest.mark.parametrize(
    ("label", "text"),
    [
        (123456789012345678901, "123456789012345678901"),
        ("007", "007"),
        (0.5, "0.5"),
        (0, "0"),
        ("", ""),
        (np.int64(2**62 + 1), str(2**62 + 1)),
        (np.float32(0.1), "0.1"),
        (np.str_("x"), "x"),
        (Decimal("123456789012345678901"), "123456789012345678901"),
        (None, None),
    ],
)
def test_a_label_is_its_exact_text(label, text):
    assert task({"prompt": "x", "label": label}).label == text


def test_the_text_image_in_a_row_without_images_is_text():
    made = task({"prompt": "Explain <image>", "images": None})
    assert (made.messages[0].content, made.images) == ("Explain <image>", ())


def test_images_inside_messages_count_from_the_same_folder(tmp_path):
    (tmp_path / "a.png").write_bytes(b"png")
    parts = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What?"}]
    made = task({"messages": [{"role": "user", "content": parts}]}, folder=tmp_path)
    assert made.messages[0].content == (ImagePart(str(tmp_path / "a.png")), TextPart("What?"))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": 5}, "`prompt` must be text or a list of messages; got integer 5"),
        ({"prompt": None}, "`prompt` must be .*; got null"),
        ({"prompt": {"a": 1}}, "`prompt` must be .*; got object {'a': 1}"),
        ({"prompt": ""}, "`prompt` must be .*; got empty text"),
        ({"prompt": []}, "`prompt` is empty"),
        ({"prompt": "x", "messages": [{"role": "user"}]}, "exactly one of `prompt` and `messages`; got both"),
        ({"promt": "x"}, "no `prompt` and no `messages`; available keys: promt"),
        ({"prompt": "x", "lable": "y"}, "unknown key 'lable'; available keys: prompt, lable"),
        ({"messages": {"role": "user"}}, "`messages` must be a list of messages; got object"),
        ({"messages": ["x"]}, "`messages`: message 1 must be an object; got text 'x'"),
        ({"messages": [{"content": "x"}]}, "`messages`: message 1: a message needs a text 'role'"),
        ({"messages": [{"role": "user", "content": 5}]}, "message 1: message content must be"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "message 1: a content part is"),
        ({"messages": [{"role": "tool", "tool_call_id": 5}]}, "message 1: `tool_call_id` must be text; got integer 5"),
        ({"messages": [{"role": "assistant", "tool_calls": {"a": 1}}]}, "`tool_calls` must be a list of objects"),
        ({"prompt": "x", "label": {"a": 1}}, "`label` must be text or a number; got object"),
        ({"prompt": "x", "label": True}, "`label` must be text or a number; got boolean True"),
        ({"prompt": "x", "label": np.True_}, "`label` must be text or a number"),
        ({"prompt": "x", "label": float("nan")}, "`label` is not a finite number"),
        ({"prompt": "x", "id": True}, "`id` must be text or an integer"),
        ({"prompt": "x", "id": [7]}, "`id` must be text or an integer; got list"),
        ({"prompt": "x", "environment": 5}, "`environment` must be text; got integer 5"),
        ({"prompt": "x", "metadata": [1]}, "`metadata` must be an object; got list"),
        ({"prompt": "x", "tools": 5}, "`tools` must be a list of objects; got integer 5"),
        ({"prompt": "x", "tools": ["f"]}, "`tools` must be a list of objects"),
        ({"prompt": "x", "images": "abc.png"}, "`images` must be a list of paths or URLs; got text 'abc.png'"),
        ({"prompt": "x", "images": [{"bytes": b""}]}, "an image must be a path or URL; got object"),
        ({"prompt": "<image>What?", "images": ["missing.png"]}, "there is no image file missing.png"),
        ({"prompt": "a \ud800 b"}, "`prompt` holds a lone surrogate"),
        ({"prompt": "x", "label": "\udc00"}, "`label` holds a lone surrogate"),
        ({"prompt": "x", "metadata": {"a": [{"\ud800": 1}]}}, "`metadata` holds a lone surrogate"),
    ],
)
def test_what_is_wrong_with_a_row_names_key_type_and_value(row, reason):
    with pytest.raises(RowError, match=reason):
        task(row)


def test_nesting_has_a_limit_that_every_later_reader_survives():
    def nested(levels: int):
        value: object = 1
        for _ in range(levels):
            value = {"a": value}
        return {"prompt": "x", "metadata": value}

    assert task(nested(64)).metadata
    with pytest.raises(RowError, match="`metadata` is nested more than 64 levels deep"):
        task(nested(65))


def test_columns_map_names_and_leave_the_others_out():
    row = {"question": "q", "answer": 5, "level": "hard", "source": None, "noise": object(), "id": ["no id"]}
    made = task(row, prompt="question", label="answer", metadata=["level", "source"])
    assert made == Task("default", (Message("user", "q"),), "5", metadata={"level": "hard", "source": None})


def test_metadata_may_be_one_column():
    assert task({"q": "x", "extra": {"a": 1}}, prompt="q", metadata="extra").metadata == {"a": 1}


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"prompt": "question"}, "there is no `question`; available keys: q, a"),
        ({"prompt": "q", "label": "answer"}, "there is no column 'answer'; available keys: q, a"),
        ({"prompt": "q", "metadata": ["level"]}, "there is no column 'level'"),
    ],
)
def test_a_mapped_column_that_is_absent_is_named_beside_those_that_exist(columns, reason):
    with pytest.raises(RowError, match=reason):
        task({"q": "x", "a": "y"}, **columns)


def test_a_mapping_without_a_prompt_is_refused():
    with pytest.raises(ValidationError, match="must name `prompt` or `messages`"):
        Columns(label="answer")


def test_columnar_rows_hold_json_as_text_and_nulls_for_absent_keys():
    row = {
        "messages": '[{"role": "user", "content": "x"}]',
        "tools": [{"name": "f", "parameters": {"a": {"type": "string"}, "b": None}}],
        "metadata": '{"level": null}',
        "images": None,
    }
    made = task(row, columnar=True)
    assert made.messages == (Message("user", "x"),)
    assert made.tools == ({"name": "f", "parameters": {"a": {"type": "string"}}},)
    assert made.metadata == {"level": None}
    with pytest.raises(RowError, match="`metadata` must be JSON where it is text"):
        task({"prompt": "x", "metadata": "{"}, columnar=True)
    with pytest.raises(RowError, match="`metadata` must be an object; got text"):
        task({"prompt": "x", "metadata": "{}"})
