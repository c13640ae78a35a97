"""Where a short conversation stands in for the whole one, it gives the boundary of the whole one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.errors import SessionError
from miles_core.session.template.boundary import Deriver
from miles_core.session.template.independence import Independence
from miles_core.session.template.literals import Literals
from miles_core.session.template.render import ChatTemplate
from miles_core.session.template.turn import Boundary, Turn

from .chat_templates import CALLS, PLAIN

END = "<|end|>"
NEXT = ({"role": "user", "content": "Next?"},)
RESULT = ({"role": "tool", "content": "18", "tool_call_id": "call00000"},)
BARE_PROMPT = "<|start|>assistant\n{% endif %}"
SWITCH = (
    "{% set ns = namespace(think=true) %}{% for m in messages %}{% if m.role in ROLES and '/no_think' in m.content %}"
    "{% set ns.think = false %}{% endif %}{% endfor %}"
)
THINKING = "<|start|>assistant\n{{ '' if ns.think else '<think></think>' }}{% endif %}"


def switched_by(roles: str) -> str:
    return SWITCH.replace("ROLES", roles) + PLAIN.replace(BARE_PROMPT, THINKING)


NUMBERED = "{% set ns = namespace(n=0) %}" + CALLS.replace(
    "<result>{{ m.content }}", "{% set ns.n = ns.n + 1 %}<result {{ ns.n }}>{{ m.content }}"
)
FOLDED = "{% set ns = namespace(first=true) %}" + CALLS.replace(
    "<result>", "{% if ns.first %}<outputs>{% set ns.first = false %}{% endif %}<result>"
)
TOOLS_AT_THE_LAST_QUESTION = (
    "{% for m in messages %}{% if m.role == 'user' %}"
    "{% if loop.last and tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
)
RULE_AT_THE_LAST_QUESTION = (
    "{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}[INST]"
    "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}{{ m.content }}[/INST]"
    "{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
)
DEPENDENT = {
    "the number of a message": PLAIN.replace("{{ m.content }}", "{{ loop.index }}{{ m.content }}"),
    "a switch in any message": switched_by("['user', 'system']"),
    "a switch in the rules": switched_by("['system']"),
    "a switch in an answer": switched_by("['assistant']"),
    "a switch in a result": switched_by("['tool']"),
    "rules that move": RULE_AT_THE_LAST_QUESTION,
    "whether there are rules": PLAIN.replace(BARE_PROMPT, "{{ messages[0].role }}" + BARE_PROMPT),
    "whether a call was made": PLAIN.replace(
        BARE_PROMPT, "{{ 'again ' if messages | selectattr('tool_calls', 'defined') | list }}" + BARE_PROMPT
    ),
    "a long conversation": PLAIN.replace(BARE_PROMPT, "{{ 'late ' if messages | length > 40 }}" + BARE_PROMPT),
    "a long message": PLAIN.replace(BARE_PROMPT, "{{ 'long ' if messages[0].content | length > 2000 }}" + BARE_PROMPT),
    "a name": PLAIN.replace(BARE_PROMPT, "{{ 'known ' if messages[0].name }}" + BARE_PROMPT),
    "a role": PLAIN.replace(
        BARE_PROMPT, "{{ 'dev ' if messages | selectattr('role', 'equalto', 'developer') | list }}" + BARE_PROMPT
    ),
    "a switch that is put together": switched_by("['user']").replace("'/no_think'", "'/no' ~ '_think'"),
    "both ends of a message": PLAIN.replace(
        BARE_PROMPT,
        "{{ 'x' if messages[0].content.startswith('<a>') and messages[0].content.endswith('</a>') }}" + BARE_PROMPT,
    ),
    "the history, for some next messages only": switched_by("['user']").replace(
        "'/no_think' in m.content", "'/no_think' in m.content and '/switch' in messages[-1].content"
    ),
}
INDEPENDENT = {
    "plain": PLAIN,
    "with calls": CALLS,
    "rules of its own": "{% if messages[0].role != 'system' %}<|start|>system\nBe good.<|end|>\n{% endif %}" + PLAIN,
    "answers that are rewritten": PLAIN.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}"),
    "tools that move": TOOLS_AT_THE_LAST_QUESTION,
}


def independence(source: str) -> Independence:
    return Independence(Deriver(ChatTemplate(source)))


def asked(appended: tuple[dict[str, Any], ...] = NEXT, stop: str | None = END, **fields: Any) -> Turn:
    return Turn((), f"four{stop or ''}", stop, appended, **fields)


@pytest.mark.parametrize("kind", DEPENDENT)
def test_what_depends_on_the_history_is_found(kind: str) -> None:
    found = independence(DEPENDENT[kind]).of(asked())
    assert found.stand_in is None
    assert found.differs is not None


@pytest.mark.parametrize("kind", INDEPENDENT)
@pytest.mark.parametrize("stop", [END, "<|other|>", None])
def test_what_does_not_depend_on_the_history_is_found(kind: str, stop: str | None) -> None:
    assert independence(INDEPENDENT[kind]).of(asked(stop=stop)).stand_in == ({"role": "user", "content": "one"},)


@pytest.mark.parametrize("source", [NUMBERED, FOLDED], ids=["numbered", "folded"])
def test_results_may_depend_on_the_history_where_questions_do_not(source: str) -> None:
    found = independence(source)
    assert found.of(asked(RESULT)).stand_in is None
    assert found.of(asked()).stand_in is not None


def test_what_is_found_is_found_once_for_turns_that_differ_in_texts_only() -> None:
    once = independence(CALLS)
    first = once.of(asked())
    other = Turn((), f"five{END}", END, ({"role": "user", "content": "Why?", "name": None},))
    assert once.of(other) is first
    assert once.of(asked(stop=None)) is first  # history shows the stop: the same renders tell both


@pytest.mark.parametrize(
    "appended",
    [
        ({"role": "user", "content": [{"type": "image", "image": "one"}]},),
        ({"role": "user", "content": "Next?", "weight": 1},),
        ({"role": "assistant", "content": "Next?"},),
    ],
    ids=["an image", "another field", "an answer"],
)
def test_messages_that_no_proof_is_tried_for_get_no_stand_in(appended: tuple[dict[str, Any], ...]) -> None:
    assert independence(PLAIN).of(asked(appended)).stand_in is None


def test_the_texts_of_a_template_are_those_that_it_can_compare_with() -> None:
    source = (
        "{{ 'a' if x == 'b' ~ 'c' }}{% set d %}e{% endset %}{{ x.startswith('(') }}{{ x.endswith(')') }}{{ y.f > 7 }}"
    )
    found = Literals.of(ChatTemplate(source, {"eos_token": "</s>"}))
    assert {"a", "bc", "e", "(x)", "</s>"} <= set(found.texts)
    assert "f" in found.names
    assert found.numbers == (7,)


TOOLS = (
    {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"q": {"type": "string"}}}}},
)
TEXTS = st.one_of(
    st.sampled_from(["Hi", "", "/no_think", "</think>", "<a>x</a>", "/switch", "<result>", "one", "{}"]),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6),
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[dict[str, Any], ...]:
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(TEXTS)})
    messages.append({"role": "user", "content": draw(TEXTS)})
    for number in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            messages.append({"role": "assistant", "content": draw(TEXTS)})
            messages.append({"role": "user", "content": draw(TEXTS)})
        else:
            ids = [f"id{number}{index}" for index in range(draw(st.integers(1, 3)))]
            function = {"name": "weather", "arguments": {"q": draw(TEXTS)}}
            calls = [{"id": each, "type": "function", "function": function} for each in ids]
            messages.append({"role": "assistant", "content": draw(TEXTS), "tool_calls": calls})
            messages += [{"role": "tool", "content": draw(TEXTS), "tool_call_id": each} for each in ids]
    return tuple(messages)


ALL = {**DEPENDENT, **INDEPENDENT, "numbered results": NUMBERED, "folded results": FOLDED}
FOUND = {kind: independence(source) for kind, source in ALL.items()}


@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(sorted(ALL)),
    history=conversations(),
    said=TEXTS,
    stop=st.sampled_from([END, "<|other|>", None]),
    results=st.integers(0, 3),
    next_question=st.one_of(st.none(), TEXTS),
    tools=st.sampled_from([(), TOOLS]),
    content=TEXTS,
)
def test_the_stand_in_gives_what_the_whole_history_gives(
    kind: str,
    history: tuple[dict[str, Any], ...],
    said: str,
    stop: str | None,
    results: int,
    next_question: str | None,
    tools: tuple[dict[str, Any], ...],
    content: str,
) -> None:
    shown = tuple({"role": "tool", "content": content, "tool_call_id": f"call{index}"} for index in range(results))
    question = () if next_question is None and results else ({"role": "user", "content": next_question or ""},)
    turn = Turn(history, said + (stop or ""), stop, (*shown, *question), tools)
    stand_in = FOUND[kind].of(turn).stand_in
    if stand_in is None:
        return
    deriver = Deriver(ChatTemplate(ALL[kind]))
    assert _answer(deriver, replace(turn, messages=stand_in)) == _answer(deriver, turn)


def _answer(deriver: Deriver, turn: Turn) -> Boundary | str:
    try:
        found = deriver.boundary(turn)
    except SessionError as error:
        return error.message.partition("roles [")[0]
    return replace(found, how="")
