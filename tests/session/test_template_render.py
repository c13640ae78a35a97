"""Templates are rendered as transformers renders them."""

from __future__ import annotations

from datetime import datetime

import pytest

from miles_core.errors import ConfigError, SessionError
from miles_core.session.template.load import load_template
from miles_core.session.template.probe import probe
from miles_core.session.template.render import ChatTemplate

ASK = [{"role": "user", "content": "Hi"}]


def test_json_is_written_without_html_escapes_and_the_generation_tag_is_known() -> None:
    template = ChatTemplate(
        "{{ messages[0] | tojson }}{% generation %}{% for _ in [1, 2] %}x{% break %}{% endfor %}{% endgeneration %}"
    )
    assert (
        template.render([{"role": "user", "content": "<é>"}], None, prompt=False)
        == '{"role": "user", "content": "<é>"}x'
    )


def test_the_clock_and_the_arguments_are_pinned() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }} {{ mood }}", {"mood": "calm"}, datetime(2025, 7, 10))
    assert template.render(ASK, None, prompt=True) == "10 Jul 2025 calm"


def test_a_template_that_is_no_jinja_is_refused() -> None:
    with pytest.raises(SessionError, match="no Jinja"):
        ChatTemplate("{% for %}").reads()


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("{% for t in tools or [] %}{{ t.function.name }}{% endfor %}", "whole"),
        ("{% for t in tools or [] %}{{ t.name }}{% endfor %}", "function"),
    ],
)
def test_tools_are_given_whole_or_as_functions(source: str, form: str) -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    forms = probe(ChatTemplate(source + "{{ messages[0].content }}"))
    assert forms.tools == form
    assert ChatTemplate(source).render(ASK, forms.of_tools(tools), prompt=True) == "weather"


def test_a_template_that_needs_a_list_of_tools_gets_an_empty_one() -> None:
    forms = probe(ChatTemplate("{{ tools | length }}{{ messages[0].content }}"))
    assert forms.of_tools(()) == []


def test_a_model_directory_brings_its_special_tokens(tmp_path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}")
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}')
    assert load_template(tmp_path, {}).render(ASK, None, prompt=True) == "<s></s>"
    assert load_template(tmp_path, {"eos_token": "<e>"}).render(ASK, None, prompt=True) == "<s><e>"


def test_the_default_of_named_templates_is_taken(tmp_path) -> None:
    config = '{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}'
    (tmp_path / "tokenizer_config.json").write_text(config)
    assert load_template(tmp_path, {}).source == "d"


def test_a_directory_without_a_template_is_a_clear_error(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no chat template at"):
        load_template(tmp_path, {})
