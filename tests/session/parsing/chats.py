"""Small templates, one for each form of calls, and what they write."""

from __future__ import annotations

import json
from typing import Any

from miles_core.session.parsing.derive import derive_parser
from miles_core.session.parsing.turn import TurnParser
from miles_core.session.template.boundary import Deriver
from miles_core.session.template.render import ChatTemplate

ASK = {"role": "user", "content": "one"}
_CALLS = "{% for c in m.tool_calls or [] %}{% set f = c.function %}CALL{% endfor %}"
_JOINED = (
    "{% if m.tool_calls %}OPEN" + _CALLS.replace("CALL", "CALL{{ '' if loop.last else ',' }}") + "CLOSE{% endif %}"
)
_OBJECT = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_ELEMENTS = (
    "<call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<key>{{ k }}</key>\n"
    "<value>{{ v if v is string else v | tojson }}</value>\n{% endfor %}</call>"
)
_NESTED = (
    "{% macro value(v) %}{% if v is mapping %}{% for k, e in v.items() %}<{{ k }}>{{ value(e) }}</{{ k }}>{% endfor %}"
    "{% elif v is string or v is not iterable %}{{ v if v is string else v | tojson }}"
    "{% else %}{% for e in v %}<each>{{ value(e) }}</each>{% endfor %}{% endif %}{% endmacro %}"
    '<call name="{{ f.name }}">{{ value(f.arguments) }}</call>'
)
_PYTHON = (
    "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}"
    "{{ '' if loop.last else ', ' }}{% endfor %})"
)
_QUOTED = (
    "<|call|>call:{{ f.name }}{{ '{' }}{% for k, v in f.arguments.items() %}{{ k }}:"
    '{% if v is string %}<|"|>{{ v }}<|"|>{% else %}{{ v | tojson }}{% endif %}'
    "{{ '' if loop.last else ',' }}{% endfor %}{{ '}' }}<call|>"
)

CALLS = {
    "object": _CALLS.replace("CALL", "{{ '\\n' }}<tool_call>\n" + _OBJECT + "\n</tool_call>"),
    "list": _JOINED.replace("OPEN", "[TOOLS] [")
    .replace("CLOSE", "]")
    .replace("CALL", _OBJECT.removesuffix("}") + ', "id": "{{ c.id }}"}'),
    "function": _CALLS.replace("CALL", '<call>{"type": "function", "function": ' + _OBJECT + "}</call>"),
    "keyed": _JOINED.replace("OPEN", "<|calls|>[")
    .replace("CLOSE", "]<|/calls|>")
    .replace("CALL", '{"{{ f.name }}": {{ f.arguments | tojson }}}'),
    "text arguments": _CALLS.replace(
        "CALL", '<call>{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson | tojson }}}</call>'
    ),
    "named": _JOINED.replace("','", "''")
    .replace("OPEN", "<|calls|>")
    .replace("CLOSE", "<|/calls|>")
    .replace("CALL", "<|call|>{{ f.name }}\n```json\n{{ f.arguments | tojson }}\n```<|/call|>"),
    "named by id": _CALLS.replace("CALL", "<|call|>{{ c.id }}<|args|>{{ f.arguments | tojson }}<|/call|>"),
    "numbered": _CALLS.replace(
        "CALL", "<|call|>functions.{{ f.name }}:{{ loop.index0 }}<|args|>{{ f.arguments | tojson }}<|/call|>"
    ),
    "elements": _CALLS.replace("CALL", _ELEMENTS),
    "nested elements": _CALLS.replace("CALL", _NESTED),
    "python": _JOINED.replace("OPEN", "<|calls|>[").replace("CLOSE", "]<|/calls|>").replace("CALL", _PYTHON),
    "quotes": _CALLS.replace("CALL", _QUOTED),
}
"""What stands behind the content of a turn, by form."""

HIDDEN = "{% if m.tool_calls %}" + _CALLS.replace("CALL", _OBJECT) + "{% else %}{{ m.content }}{% endif %}"
"""A turn that is either one bare object or its content."""


def chat(turn: str, *, prompt: str = "") -> str:
    """A template whose assistant turns are written in this way; ``prompt`` is what the policy goes on from."""
    return (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}" + turn + "{% else %}"
        "{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n" + prompt + "{% endif %}"
    )


def calling(form: str) -> str:
    """A template that writes calls in a form."""
    return chat("{{ m.content or '' }}" + CALLS[form])


def parser_of(source: str, **variables: Any) -> TurnParser:
    """The parser that a template tells."""
    return derive_parser(Deriver(ChatTemplate(source, variables)))


def call(name: str, arguments: Any, identifier: str = "abcdefgh1") -> dict[str, Any]:
    """A call as messages hold it."""
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def written(source: str, **turn: Any) -> str:
    """What a template writes for a turn, as the policy would generate it."""
    template = ChatTemplate(source)
    chat = [ASK, {"role": "assistant", **turn}]
    text = template.render(chat, None, prompt=False)
    return text.removeprefix(template.render([ASK], None, prompt=True)).removesuffix("<|im_end|>\n")


def read(parser: TurnParser, text: str, *, calls: bool = True) -> tuple[str, list[tuple[str, Any]]]:
    """Content and calls of a text, with the arguments parsed."""
    message = parser.message(text, calls=calls, call_id="new{}".format)
    found = [each["function"] for each in message.tool_calls]
    return message.text, [(each["name"], json.loads(each["arguments"])) for each in found]
