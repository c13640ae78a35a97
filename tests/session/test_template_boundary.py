"""The text between a generated turn and the next one, on small templates that each show one trap."""

from __future__ import annotations

import pytest

from miles_core.errors import SessionError
from miles_core.session.template.boundary import Deriver
from miles_core.session.template.render import ChatTemplate
from miles_core.session.template.turn import Boundary, Turn

from .chat_templates import CALLS, PLAIN

ASK = ({"role": "user", "content": "Hi"},)
NEXT = ({"role": "user", "content": "Next?"},)
RESULT = {"role": "tool", "content": "18", "tool_call_id": "call00001", "name": "weather"}
TWO_RESULTS = (RESULT, {"role": "tool", "content": "rain", "tool_call_id": "call00002", "name": "sky"})

NO_CLOSE = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|observation|>\n{{ m.content }}"
    "{% elif m.tool_calls %}<|assistant|>{% for c in m.tool_calls %}<call>{{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v }}</{{ k }}>{% endfor %}</call>{% endfor %}"
    "{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LAST_CLOSES_OTHERWISE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.role == 'assistant' and loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
ALTERNATES = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content.strip() }} [/INST]{% else %} {{ m.content.strip() }}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)


def deriver(source: str, **variables: str) -> Deriver:
    return Deriver(ChatTemplate(source, variables))


def after(source: str, generated: str, stop: str | None, appended, messages=ASK, tools=(), **variables) -> Boundary:
    return deriver(source, **variables).boundary(Turn(messages, generated, stop, tuple(appended), tuple(tools)))


def test_a_stopped_turn_is_followed_by_the_separator_and_not_closed_again() -> None:
    assert after(PLAIN, "four<|end|>", "<|end|>", NEXT).suffix == "\n<|start|>user\nNext?<|end|>\n<|start|>assistant\n"


def test_a_cut_turn_gets_the_whole_close() -> None:
    found = after(PLAIN, "fo", None, NEXT)
    assert found == Boundary("<|end|>\n<|start|>user\nNext?<|end|>\n<|start|>assistant\n", False, found.how)


def test_a_close_with_leading_text_is_written_whole_after_a_cut_turn_only() -> None:
    leads = PLAIN.replace("{{ m.content }}<|end|>", "{{ m.content }}\n<|end|>")
    assert after(leads, "fo", None, NEXT).suffix.startswith("\n<|end|>\n<|start|>user")
    assert after(leads, "four\n<|end|>", "<|end|>", NEXT).suffix.startswith("\n<|start|>user")


def test_unfinished_reasoning_is_left_open() -> None:
    assert after(PLAIN, "<think>\nI won", None, NEXT).suffix.startswith("<|end|>\n<|start|>user")


def test_another_stop_stands_in_for_the_close_of_history() -> None:
    assert after(PLAIN, "four<|eos|>", "<|eos|>", NEXT).suffix.startswith("\n<|start|>user\nNext?")


@pytest.mark.parametrize("stop", ["<|return|>", "<|end|>", "<|other|>"])
def test_a_last_turn_that_closes_otherwise_is_compared_by_whole_tokens(stop: str) -> None:
    found = after(LAST_CLOSES_OTHERWISE, f"four{stop}", stop, NEXT)
    assert found.suffix == "<|start|>user\nNext?<|end|><|start|>assistant\n"
    assert not found.drop_stop


def test_history_without_a_close_keeps_a_stop_that_opens_the_appended_turn() -> None:
    assert after(NO_CLOSE, "\nfour<|user|>", "<|user|>", NEXT).suffix == "\nNext?<|assistant|>"


def test_a_stop_that_opens_another_turn_is_taken_back() -> None:
    found = after(NO_CLOSE, "<call>weather</call><|observation|>", "<|observation|>", NEXT)
    assert (found.suffix, found.drop_stop) == ("<|user|>\nNext?<|assistant|>", True)


def test_a_stop_that_history_never_shows_is_kept_where_history_has_no_close() -> None:
    found = after(NO_CLOSE, "\nfour<|eos|>", "<|eos|>", NEXT)
    assert (found.suffix, found.drop_stop) == ("<|user|>\nNext?<|assistant|>", False)


def test_an_opener_that_all_roles_share_is_no_close() -> None:
    shared = (
        "{% for m in messages %}<turn>{{ m.role }}\n{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
    )
    assert after(shared, "four</s>", "</s>", NEXT).suffix.startswith("\n<turn>user\nNext?")


def test_results_that_share_a_block_are_rendered_together() -> None:
    found = after(CALLS, '<call>{"name": "weather"}</call><|end|>', "<|end|>", TWO_RESULTS)
    assert found.suffix == ("\n<|start|>user\n<result>18</result><result>rain</result><|end|>\n<|start|>assistant\n")


def test_calls_that_were_cut_get_only_what_they_lack() -> None:
    found = after(CALLS, '<call>{"name": "weather", "arguments": {"q": "x"}}</call>', None, [RESULT])
    assert found.suffix.startswith("<|end|>\n<|start|>user\n<result>18</result>")


@pytest.mark.parametrize("gate", ["is none", "== ''"])
def test_templates_that_gate_calls_on_the_content_beside_them(gate: str) -> None:
    gated = CALLS.replace("{% if m.tool_calls %}", "{% if m.tool_calls and m.content " + gate + " %}")
    assert after(gated, "<call/><|end|>", "<|end|>", [RESULT]).suffix.startswith("\n<|start|>user\n<result>18")


def test_arguments_as_text_where_a_template_concatenates_them() -> None:
    joined = CALLS.replace("{{ c.function.arguments | tojson }}", "{{ '' + c.function.arguments }}")
    assert deriver(joined).forms.arguments == "string"
    assert after(joined, "<call/><|end|>", "<|end|>", [RESULT]).suffix.startswith("\n<|start|>user\n<result>18")


def test_contents_as_parts_where_a_template_takes_nothing_else() -> None:
    parts = PLAIN.replace("{{ m.content }}", "{% for part in m.content %}{{ part.text }}{% endfor %}")
    assert deriver(parts).forms.parts == {"user", "assistant", "system", "tool"}
    assert after(parts, "four<|end|>", "<|end|>", NEXT).suffix.startswith("\n<|start|>user\nNext?<|end|>")


def test_a_header_that_needs_the_name_of_the_call_takes_it_from_the_turn() -> None:
    named = "{% set ns = namespace(name='') %}" + CALLS.replace(
        "{% for c in m.tool_calls %}", "{% set ns.name = m.tool_calls[0].function.name %}{% for c in m.tool_calls %}"
    ).replace("<result>", "<result of={{ ns.name }}>")
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    nameless = {key: value for key, value in RESULT.items() if key != "name"}
    found = after(named, '<call>{"name": "weather"}</call><|end|>', "<|end|>", [nameless], tools=[tool])
    assert "<result of=weather>18" in found.suffix


def test_a_type_that_is_looked_up_among_the_tools_is_found() -> None:
    typed = CALLS.replace(
        "{{ c.function.arguments | tojson }}",
        "{% for k, v in c.function.arguments.items() %}{{ v }}:"
        "{{ tools[0].function.parameters.properties[k].type.upper() }}{% endfor %}",
    )
    properties = {"days": {"type": "integer"}, "city": {"type": "string"}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"properties": properties}}}
    assert "<result>18" in after(typed, "<call/><|end|>", "<|end|>", [RESULT], tools=[tool]).suffix


def test_what_moves_to_the_last_question_is_written_there() -> None:
    moves = (
        "{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}[INST]"
        "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}{{ m.content }}[/INST]"
        "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
    )
    found = after(moves, "four</s>", "</s>", NEXT, messages=({"role": "system", "content": "Rhyme."}, *ASK))
    assert found.suffix == "[INST]Rhyme. Next?[/INST]"


def test_a_generation_prompt_that_the_appended_text_changes() -> None:
    thinks = PLAIN + "{% if messages[-1].content.endswith('/fast') %}<think></think>{% endif %}"
    found = after(thinks, "four<|end|>", "<|end|>", [{"role": "user", "content": "Next? /fast"}])
    assert found.suffix.endswith("<|start|>assistant\n<think></think>")


def test_a_header_that_depends_on_the_text_is_cut_where_the_stop_stands() -> None:
    kinds = PLAIN.replace("\n{{ m.content }}", "{{ ' json' if m.content[0] == '{' }}\n{{ m.content }}")
    result = {"role": "tool", "content": "{}"}
    assert after(kinds, "four<|end|>", "<|end|>", [result]).suffix.startswith("\n<|start|>tool json\n{}<|end|>")
    with pytest.raises(SessionError, match="differently for some contents"):
        after(kinds, "four<|eos|>", "<|eos|>", [result])


def test_brackets_that_a_template_writes_around_a_text_are_no_token_of_it() -> None:
    listed = PLAIN.replace("{{ m.content }}", "[{{ m.content }}]")
    assert after(listed, "four]<|end|>", "<|end|>", NEXT).suffix.startswith("\n<|start|>user\n[Next?]")


def test_alternating_templates_refuse_in_their_own_words() -> None:
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    assert after(ALTERNATES, "four</s>", "</s>", NEXT, **variables).suffix == "[INST] Next? [/INST]"
    with pytest.raises(SessionError, match=r"roles \[user assistant user user\]: roles must alternate"):
        after(ALTERNATES, "four</s>", "</s>", NEXT * 2, **variables)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("{% for m in messages if m.role != 'system' %}", "drops a 'system' message"),
        (
            "{{ messages[2].content if messages[2].role == 'system' }}{% for m in messages %}",
            "moves an appended message",
        ),
        (
            "{{ messages[-1].content if messages[-1].role == 'user' }}{% for m in messages %}",
            "moves an appended message",
        ),
        ("{% for m in messages %}{{ m.content if m.role == 'system' }}", "doubles a 'system' message"),
    ],
)
def test_what_is_not_appended_is_refused(change: str, reason: str) -> None:
    moved = PLAIN.replace("{% for m in messages %}", change)
    with pytest.raises(SessionError, match=reason):
        after(moved, "four<|end|>", "<|end|>", ({"role": "system", "content": "Rhyme."}, *NEXT))


def test_a_template_that_loses_parallel_calls_refuses_two_results() -> None:
    first = CALLS.replace("{% for c in m.tool_calls %}", "{% for c in m.tool_calls[:1] %}")
    with pytest.raises(SessionError, match="shows the last call of the assistant's turn 0 times"):
        after(first, "<call/><call/><|end|>", "<|end|>", TWO_RESULTS)


def test_reordered_results_are_refused() -> None:
    reordered = PLAIN.replace("{% for m in messages %}", "{% for m in messages[:2] + messages[2:] | reverse | list %}")
    with pytest.raises(SessionError, match="reorders a 'user' message"):
        after(reordered, "four<|end|>", "<|end|>", [*NEXT, {"role": "user", "content": "Why?"}])


def test_a_history_that_the_template_refuses_is_replaced_by_conversations_that_agree() -> None:
    strict = "{% if '<raw>' in messages[1].content %}{{ raise_exception('no raw text') }}{% endif %}" + PLAIN
    history = (*ASK, {"role": "assistant", "content": "<raw>"}, *ASK)
    assert after(strict, "four<|end|>", "<|end|>", NEXT, messages=history).how.endswith("without the history")


def test_words_of_the_conversation_are_never_taken_for_stand_ins() -> None:
    found = after(PLAIN, "qSentinelq<|end|>", "<|end|>", [{"role": "user", "content": "qMarkAq qSentinelq <|end|>"}])
    assert "qMarkAq qSentinelq <|end|><|end|>" in found.suffix


def test_a_generated_text_without_its_stop_is_refused() -> None:
    with pytest.raises(SessionError, match="does not end in its stop"):
        after(PLAIN, "four", "<|end|>", NEXT)
