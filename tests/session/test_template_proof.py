"""The proof at start-up says what can be appended, and why not."""

from __future__ import annotations

from miles_core.session.template.boundary import Deriver
from miles_core.session.template.describe import as_dict, describe
from miles_core.session.template.proof import prove
from miles_core.session.template.render import ChatTemplate

CHAT = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def proof_of(source: str):
    return prove(Deriver(ChatTemplate(source)), ["<|end|>"])


def test_a_plain_template_appends_everything() -> None:
    proof = proof_of(CHAT)
    assert all(each.allowed and each.same and each.rewrites is None for each in proof.appends)
    assert proof.generation_prompt == "<|start|>assistant\n"
    assert proof.close == "<|end|>\n<|start|>user\n"


def test_a_role_that_is_dropped_is_named_with_the_reason() -> None:
    proof = proof_of(CHAT.replace("in messages", "in messages if m.role != 'tool'"))
    assert proof.of("user").allowed
    assert not proof.of("tool").allowed
    assert "drops a 'tool' message" in (proof.of("tool").reason or "")
    assert "append tool         no: the chat template drops" in describe("it", proof)


def test_what_depends_on_the_history_is_said() -> None:
    numbered = CHAT.replace("{{ m.content }}", "{{ loop.index }}{{ m.content }}")
    assert proof_of(numbered).of("user").same is False


def test_what_a_fresh_render_would_rewrite_is_said() -> None:
    hides = CHAT.replace("{{ m.content }}", "{{ 'hidden' if m.role == 'assistant' and not loop.last else m.content }}")
    proof = proof_of(hides)
    assert not proof.of("user").allowed  # the turn itself is not shown


def test_a_generation_prompt_that_history_does_not_show_is_said() -> None:
    thinks = CHAT.replace("<|start|>assistant\n{% endif %}", "<|start|>assistant\n<think>\n{% endif %}")
    proof = proof_of(thinks)
    assert proof.of("user").allowed
    assert "kept '<think>" in (proof.of("user").rewrites or "")


def test_a_template_that_appends_nothing_does_not_hold() -> None:
    first_only = "{{ messages[0].content }}"
    proof = proof_of(first_only)
    assert not proof.holds
    assert as_dict(proof)["allowed"] is False
    assert "cannot be continued" in describe("it", proof)


def test_a_template_that_starts_with_a_system_message_is_proved_with_one() -> None:
    strict = "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}" + CHAT
    assert proof_of(strict).of("user").allowed
