"""Chat templates of our own that more than one test renders."""

from __future__ import annotations

PLAIN = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
CALLS = (
    "{% for m in messages %}{% if m.tool_calls %}<|start|>assistant\n{% for c in m.tool_calls %}"
    '<call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</call>'
    "{% endfor %}<|end|>\n{% elif m.role == 'tool' %}"
    "{% if loop.previtem.role != 'tool' %}<|start|>user\n{% endif %}<result>{{ m.content }}</result>"
    "{% if loop.last or loop.nextitem.role != 'tool' %}<|end|>\n{% endif %}"
    "{% else %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
