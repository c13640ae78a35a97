"""What a chat template can tell messages apart by: the texts, names and numbers that its code holds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.session.template.render import ChatTemplate

_PLAIN_FIELDS = {"role", "content", "tool_calls"}


@dataclass(frozen=True)
class Literals:
    """The literals of a template.

    ``texts`` are its string constants and those of its variables, and what starts with one and ends with another where
    it looks at both ends; ``names`` the fields that it may read of a message; ``numbers`` its whole numbers.
    """

    texts: tuple[str, ...]
    names: tuple[str, ...]
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, template: ChatTemplate) -> Literals:
        """The literals of ``template``.

        Raises:
            SessionError: if it is no Jinja.
        """
        from jinja2 import nodes

        tree = template.parsed()
        constants = [node.value for node in tree.find_all(nodes.Const)]
        strings = [value for value in constants if isinstance(value, str)]
        given = [value for value in template.variables.values() if isinstance(value, str)]
        texts = [*strings, *_joined(tree), *_blocks(tree), *given, *_both_ends(tree)]
        fields = [node.attr for node in tree.find_all(nodes.Getattr)] + [
            text for text in strings if text.isidentifier()
        ]
        numbers = {value for value in constants if type(value) is int}
        return cls(
            tuple(dict.fromkeys(text for text in texts if text)),
            tuple(name for name in dict.fromkeys(fields) if name not in _PLAIN_FIELDS),
            tuple(sorted(numbers)),
        )


def _joined(tree: Any) -> Iterator[str]:
    """Constants that the template puts together."""
    from jinja2 import nodes

    for node in tree.find_all((nodes.Add, nodes.Concat)):
        try:
            value = node.as_const()
        except nodes.Impossible:
            continue
        if isinstance(value, str):
            yield value


def _blocks(tree: Any) -> Iterator[str]:
    """Texts that the template keeps in variables."""
    from jinja2 import nodes

    for block in tree.find_all(nodes.AssignBlock):
        for data in block.find_all(nodes.TemplateData):
            yield data.data


def _both_ends(tree: Any) -> Iterator[str]:
    """Texts that start and end as the template asks in calls of ``startswith`` and ``endswith``."""
    from jinja2 import nodes

    ends: dict[str, list[str]] = {"startswith": [], "endswith": []}
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in ends:
            texts = [each.value for each in call.find_all(nodes.Const) if isinstance(each.value, str)]
            ends[call.node.attr] += texts
    for start, end in product(dict.fromkeys(ends["startswith"]), dict.fromkeys(ends["endswith"])):
        yield f"{start}x{end}"
