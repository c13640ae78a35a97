"""A chat template that renders as transformers 5 does, with its clock, special tokens and arguments pinned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from miles_core.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from jinja2 import nodes

Chat = dict[str, Any]
"""One message as a template sees it: ``role``, ``content``, and what else the role has."""

CLOCK_ARGUMENT = "now"
_CLOCK = "strftime_now"


@dataclass(frozen=True)
class ChatTemplate:
    """The text of a template and everything else that its output depends on.

    ``clock`` is what ``strftime_now`` tells; ``None`` is the machine's. ``variables`` are special tokens
    (``bos_token``, ``eos_token``) and template arguments alike.
    """

    source: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    clock: datetime | None = None

    def render(self, messages: Sequence[Chat], tools: Sequence[Mapping[str, Any]] | None, *, prompt: bool) -> str:
        """The text of a conversation; ``prompt`` adds the generation prompt.

        Raises:
            SessionError: with the template's own words, if it refuses.
        """
        from transformers.utils import chat_template_utils as theirs

        variables = dict(self.variables)
        if (clock := self.clock) is not None:
            variables[_CLOCK] = clock.strftime
        plain = theirs._plain_template_data([dict(message) for message in messages])
        try:
            return str(
                theirs._compile_jinja_template(self.source).render(
                    messages=theirs._alias_reasoning_fields(plain),
                    tools=None if tools is None else theirs._plain_template_data(list(tools)),
                    documents=None,
                    add_generation_prompt=prompt,
                    **variables,
                )
            )
        except Exception as error:  # a template is a program of somebody else
            roles = " ".join(str(message.get("role")) for message in messages)
            raise SessionError(
                f"the chat template refuses a conversation of roles [{roles}]: {str(error) or type(error).__name__}",
                remedy="Check which roles the model's template accepts, and in which order.",
            ) from error

    def reads(self) -> frozenset[str]:
        """The variables that the template expects from its caller.

        Raises:
            SessionError: if it is no Jinja.
        """
        from jinja2 import meta

        return frozenset(meta.find_undeclared_variables(self.parsed()))

    @property
    def reads_clock(self) -> bool:
        """Whether the template asks for the time."""
        return _CLOCK in self.source

    def parsed(self) -> nodes.Template:
        """The template's code as Jinja's tree.

        Raises:
            SessionError: if it is no Jinja.
        """
        from jinja2 import TemplateSyntaxError
        from transformers.utils import chat_template_utils as theirs

        try:
            tree: nodes.Template = theirs._compile_jinja_template(self.source).environment.parse(self.source)
        except TemplateSyntaxError as error:
            raise SessionError(f"the chat template is no Jinja: {error}") from error
        return tree
