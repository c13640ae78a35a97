"""Token in, token out: what was generated is kept, and only what is new is tokenized."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.errors import ConfigError, SessionError
from miles_core.kinds.sessions import GeneratedTurn
from miles_core.session.startup import check_append_only
from miles_core.session.template.render import ChatTemplate
from miles_core.session.tito import TemplateRenderer
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import ImagePart, Message

IM_END = 2
ASK = Message("user", "value of c?")
# Characters of the tokenizer, and words that look like the template's own text.
CONTENT = st.one_of(
    st.sampled_from(["im", "end", "im_end", "tool", "user", "assistant", "\n", "<", "|>", "qSENTINEL"]),
    st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8),
)
CALLS = (
    "{% for t in tools or [] %}{{ t.function.name }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{% if m.role == 'tool' %}result\n{{ m.content }}"
    "{% elif m.tool_calls %}{{ m.role }}\n{% for c in m.tool_calls %}"
    "<call>{{ c.function.name }} {{ ARGUMENTS }}</call>{% endfor %}"
    "{% else %}{{ m.role }}\n{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OBJECTS_ONLY = CALLS.replace("ARGUMENTS", "c.function.arguments | tojson")
OBJECTS_AND_TEXT = CALLS.replace(
    "ARGUMENTS", "c.function.arguments if c.function.arguments is string else c.function.arguments | tojson"
)
TOOLS = ({"type": "function", "function": {"name": "get", "parameters": {}}},)


@contextmanager
def template(chat: ChatTokenizer, text: str) -> Iterator[ChatTokenizer]:
    """A tokenizer that remembers nothing, with another template."""
    before = chat.tokenizer.chat_template
    chat.tokenizer.chat_template = text
    try:
        yield ChatTokenizer(chat.tokenizer, chat.stop_token_ids)
    finally:
        chat.tokenizer.chat_template = before


def generated(
    chat: ChatTokenizer, text: str, stop: int | None = IM_END, before: Sequence[Message] = (ASK,), **fields: Any
) -> GeneratedTurn:
    ids = (*chat.encode(text), *(() if stop is None else (stop,)))
    return GeneratedTurn(tuple(before), Message("assistant", text), ids, stop, **fields)


def with_calls(*calls: tuple[str, str]) -> Message:
    """An answer of nothing but calls, of names and arguments."""
    made = [
        {"id": f"c{i}", "type": "function", "function": {"name": n, "arguments": a}} for i, (n, a) in enumerate(calls)
    ]
    return Message("assistant", tool_calls=tuple(made))


def test_a_stopped_turn_continues_with_the_separator_and_without_a_second_stop_token(chat: ChatTokenizer) -> None:
    ids = TemplateRenderer(chat).boundary(generated(chat, "get c"), [Message("tool", "2")])
    assert chat.decode(ids) == "\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n"


def test_a_turn_that_was_cut_or_ended_by_a_text_is_closed_first(chat: ChatTokenizer) -> None:
    ids = TemplateRenderer(chat).boundary(generated(chat, "get c", None), [Message("tool", "2")])
    assert chat.decode(ids).startswith("<|im_end|>\n<|im_start|>tool")


@settings(max_examples=60, deadline=None)
@given(question=CONTENT, answer=CONTENT, shown=CONTENT, role=st.sampled_from(["user", "tool"]))
def test_pieces_equal_a_fresh_render(chat: ChatTokenizer, question: str, answer: str, shown: str, role: str) -> None:
    messages = [Message("user", question), Message("assistant", answer), Message(role, shown)]
    renderer = TemplateRenderer(chat)
    turn = generated(chat, answer, before=messages[:1])
    pieces = [*renderer.prompt(messages[:1]), *turn.output_ids, *renderer.boundary(turn, messages[2:])]
    fresh = [message.to_chat() for message in messages]
    rendered = chat.tokenizer.apply_chat_template(fresh, add_generation_prompt=True, tokenize=False)
    assert chat.decode(pieces) == rendered


def test_the_ids_tell_what_was_generated_and_not_the_parsed_response(chat: ChatTokenizer) -> None:
    with template(chat, OBJECTS_ONLY) as other:
        ids = tuple(other.encode('<call>get {"q": "c"}'))
        turn = GeneratedTurn((ASK,), with_calls(("get", "{}")), ids, None, TOOLS)
        found = TemplateRenderer(other).boundary(turn, [Message("tool", "2", tool_call_id="c0")])
    assert chat.decode(found).startswith("</call><|im_end|>\n<|im_start|>result\n2<|im_end|>")


def test_results_are_written_after_the_calls_of_the_response(chat: ChatTokenizer) -> None:
    named = OBJECTS_ONLY.replace("result\n", "result of {{ messages[loop.index0 - 1].tool_calls[0].function.name }}\n")
    with template(chat, named) as other:
        response = with_calls(("get", '{"q": "c"}'))
        turn = GeneratedTurn((ASK,), response, (*other.encode("<call>get</call>"), IM_END), IM_END, TOOLS)
        ids = TemplateRenderer(other).boundary(turn, [Message("tool", "2", tool_call_id="c0")])
    assert chat.decode(ids) == "\n<|im_start|>result of get\n2<|im_end|>\n<|im_start|>assistant\n"


def test_two_results_share_a_block_where_the_template_writes_one(chat: ChatTokenizer) -> None:
    shared = OBJECTS_ONLY.replace(
        "<|im_start|>{% if m.role == 'tool' %}result\n{{ m.content }}",
        "{% if m.role != 'tool' or loop.previtem.role != 'tool' %}<|im_start|>{% endif %}"
        "{% if m.role == 'tool' %}<result>{{ m.content }}</result>",
    ).replace("<|im_end|>\n{% endfor %}", "{% if m.role != 'tool' or loop.last or loop.nextitem.role != 'tool' %}"
              "<|im_end|>\n{% endif %}{% endfor %}")  # fmt: skip
    with template(chat, shared) as other:
        response = with_calls(("get", "{}"), ("get", "{}"))
        turn = GeneratedTurn((ASK,), response, (*other.encode("<call/><call/>"), IM_END), IM_END, TOOLS)
        results = [Message("tool", "2", tool_call_id="c0"), Message("tool", "3", tool_call_id="c1")]
        ids = TemplateRenderer(other).boundary(turn, results)
    assert chat.decode(ids) == ("\n<|im_start|><result>2</result><result>3</result><|im_end|>\n<|im_start|>assistant\n")


def test_the_default_rules_are_not_written_again(chat: ChatTokenizer) -> None:
    rules = "{% if messages[0].role != 'system' %}<|im_start|>system\nbe good<|im_end|>\n{% endif %}"
    with template(chat, rules + chat.tokenizer.chat_template) as other:
        renderer = TemplateRenderer(other)
        assert "be good" in chat.decode(renderer.prompt([ASK]))
        assert "be good" not in chat.decode(renderer.boundary(generated(other, "get c"), [Message("user", "and d?")]))


def test_several_system_messages_are_written_in_their_order(chat: ChatTokenizer) -> None:
    messages = [Message("system", "a"), Message("system", "b"), ASK]
    text = chat.decode(TemplateRenderer(chat).prompt(messages))
    assert text.startswith("<|im_start|>system\na<|im_end|>\n<|im_start|>system\nb<|im_end|>\n<|im_start|>user")


def test_no_content_beside_calls_is_written_as_an_empty_one(chat: ChatTokenizer) -> None:
    shows = OBJECTS_ONLY.replace("{{ m.role }}\n{% for", "{{ m.role }}\n{{ m.content or '' }}{% for")
    chats = [{**with_calls(("get", "{}")).to_chat(), "content": content} for content in (None, "")]
    with template(chat, shows) as other:
        texts = [TemplateRenderer(other).prompt([ASK, Message.from_chat(each), ASK], TOOLS) for each in chats]
    assert texts[0] == texts[1]
    assert "None" not in chat.decode(texts[0])


@pytest.mark.parametrize("arguments", ["c", "[1]", '{"q": ', ""])
def test_arguments_that_are_no_object_stay_text_where_the_template_takes_text(
    chat: ChatTokenizer, arguments: str
) -> None:
    messages = [ASK, with_calls(("get", arguments)), Message("tool", "2", tool_call_id="c0")]
    with template(chat, OBJECTS_AND_TEXT) as other:
        assert f"<call>get {arguments}</call>" in chat.decode(TemplateRenderer(other).prompt(messages, TOOLS))
    with template(chat, OBJECTS_ONLY) as other, pytest.raises(SessionError, match="must be a JSON object; got"):
        TemplateRenderer(other).prompt(messages, TOOLS)


def test_fields_that_say_nothing_change_nothing(chat: ChatTokenizer) -> None:
    asks = chat.tokenizer.chat_template.replace(
        "{{ message['content'] }}",
        "{{ message['content'] }}{% for key in ('name', 'refusal', 'annotations', 'audio') %}"
        "{{ key if key in message }}{% endfor %}",
    )
    empty = {"name": None, "refusal": None, "annotations": [], "audio": None, "tool_calls": None}
    said, after = ({"role": role, "content": "ab"} for role in ("assistant", "user"))
    with template(chat, asks) as other:
        renderer, plain = TemplateRenderer(other), [ASK, Message.from_chat(said), Message.from_chat(after)]
        given = [ASK, Message.from_chat({**said, **empty}), Message.from_chat({**after, **empty})]
        assert renderer.prompt(given) == renderer.prompt(plain)
        turn = generated(other, "get c")
        assert renderer.boundary(turn, given[2:]) == renderer.boundary(turn, plain[2:])


def test_a_turn_that_ended_with_another_stop_is_not_closed_again(chat: ChatTokenizer) -> None:
    found = TemplateRenderer(chat).boundary(generated(chat, "get c", chat.encode("z")[0]), [Message("tool", "2")])
    assert chat.decode(found) == "\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n"


def renders(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages were given to the template, each time."""
    counts: list[int] = []
    real = ChatTemplate.render

    def counting(self: ChatTemplate, messages: Sequence[Any], *arguments: Any, **options: Any) -> str:
        counts.append(len(messages))
        return real(self, messages, *arguments, **options)

    monkeypatch.setattr(ChatTemplate, "render", counting)
    return counts


def test_a_boundary_renders_as_little_after_many_turns_as_after_one(
    chat: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer, turns = TemplateRenderer(chat), [(ASK, Message("assistant", "get c")) * count for count in (1, 64)]
    renderer.boundary(generated(chat, "get c"), [ASK])  # what is proved once
    counts = renders(monkeypatch)
    for history in turns:
        renderer.boundary(generated(chat, "get c", before=(*history, ASK)), [Message("user", "and d?")])
    assert counts == [3, 3, 3, 3]


@pytest.mark.parametrize("before", [(Message("assistant", "hi"),), (Message("user", (ImagePart("a.png"),)),), ()])
def test_a_history_of_a_kind_that_was_not_tried_is_rendered_whole(
    chat: ChatTokenizer, monkeypatch: pytest.MonkeyPatch, before: tuple[Message, ...]
) -> None:
    renderer = TemplateRenderer(chat)
    renderer.boundary(generated(chat, "get c"), [ASK])
    counts = renders(monkeypatch)
    renderer.boundary(generated(chat, "get c", before=(ASK, *before) if before else ()), [ASK])
    assert set(counts) == {2 + (1 + len(before) if before else 0)}


def test_what_is_refused_names_the_roles_of_the_conversation_itself(chat: ChatTokenizer) -> None:
    strict = "{% if messages[-1].content == '?' %}{{ raise_exception('no question') }}{% endif %}"
    history = (ASK, Message("assistant", "get c")) * 2
    with (
        template(chat, strict + chat.tokenizer.chat_template) as other,
        pytest.raises(SessionError, match=r"roles \[user assistant user assistant user assistant user\]: no question"),
    ):
        TemplateRenderer(other).boundary(generated(other, "a", before=(*history, ASK)), [Message("user", "?")])


def test_the_clock_is_told_to_templates_that_ask_and_is_part_of_what_is_remembered(chat: ChatTokenizer) -> None:
    dated = "{{ strftime_now('%Y-%m-%d') }}" + chat.tokenizer.chat_template
    with template(chat, dated) as other:
        texts = [other.decode(TemplateRenderer(other, datetime(2025, 7, day)).prompt([ASK])) for day in (10, 11, 10)]
    assert [text[:10] for text in texts] == ["2025-07-10", "2025-07-11", "2025-07-10"]


def test_tools_are_part_of_what_is_remembered(chat: ChatTokenizer) -> None:
    with template(chat, OBJECTS_ONLY) as other:
        renderer = TemplateRenderer(other)
        texts = [other.decode(renderer.prompt([ASK], tools)) for tools in ((), TOOLS, ())]
    assert [text.startswith("get\n") for text in texts] == [False, True, False]


def test_what_is_proved_at_start_up_is_not_proved_again(chat: ChatTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    with template(chat, OBJECTS_ONLY) as other:
        check_append_only(other, ["user"], tools=True)
        counts = renders(monkeypatch)
        result = Message("tool", "2", tool_call_id="c0")
        ids = (*other.encode("<call>get {}</call>"), IM_END)
        turn = GeneratedTurn((ASK,), with_calls(("get", "{}")), ids, IM_END, TOOLS)
        TemplateRenderer(other).boundary(turn, [result])
        TemplateRenderer(other).boundary(generated(other, "get c"), [ASK])
    assert len(counts) == 4


def test_a_template_that_rewrites_history_still_continues(chat: ChatTokenizer) -> None:
    # Changes earlier turns once a later message follows, as reasoning templates do with their thoughts.
    rewrites = chat.tokenizer.chat_template.replace(
        "{{ message['content'] }}",
        "{{ message['content'] | upper if message.role == 'user' and not loop.last else message['content'] }}",
    )
    with template(chat, rewrites) as other:
        ids = TemplateRenderer(other).boundary(generated(other, "yo"), [Message("user", "go")])
    assert chat.decode(ids) == "\n<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_raises_names_the_roles(chat: ChatTokenizer) -> None:
    with (
        template(chat, "{{ raise_exception('roles must alternate') }}") as other,
        pytest.raises(SessionError, match=r"roles \[user user\].*alternate"),
    ):
        TemplateRenderer(other).prompt([Message("user", "a"), Message("user", "b")])


def test_a_directory_without_a_tokenizer_is_a_clear_error(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no tokenizer in"):
        ChatTokenizer.load(tmp_path)
