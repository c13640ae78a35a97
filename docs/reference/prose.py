"""Docstrings as Markdown."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 120
_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_SECTION = re.compile(r"(Raises|Returns|Yields|Services):")
_ITEM = re.compile(r"[*-] |[^\s:][^:]*: ")


def markdown(docstring: str | None) -> str:
    """The whole docstring: paragraphs wrapped again, ``Raises:`` and lists as lists."""
    return "\n\n".join(filter(None, map(_paragraph, blocks(docstring))))


def summary(docstring: str | None) -> str:
    """The first paragraph on one line."""
    return _inline(" ".join((blocks(docstring) or [""])[0].split()))


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *(tuple(_cell(cell) for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def blocks(docstring: str | None) -> list[str]:
    """The paragraphs as they stand in the source, without their common indentation; code stays together."""
    found: list[str] = []
    for block in re.split(r"\n[ ]*\n", inspect.cleandoc(docstring or "")):
        if found and found[-1].startswith("    ") and block.startswith("    "):
            found[-1] += f"\n\n{block}"
        elif block.strip():
            found.append(block)
    return found


def _paragraph(block: str) -> str:
    head, _, rest = block.partition("\n")
    if match := _SECTION.fullmatch(head.strip()):
        return f"{match[1]}:\n\n" + "\n".join(f"* {_section_item(item)}" for item in _items(textwrap.dedent(rest)))
    if head.startswith("* "):
        return "\n".join(_wrapped(_inline(item), indent="  ") for item in _items(block))
    if block.startswith(("::", "    ")):
        return f"```\n{textwrap.dedent(block.removeprefix('::')).strip()}\n```"
    return _wrapped(_inline(" ".join(block.split())))


def _items(text: str) -> list[str]:
    """Lines that begin an item, each with the indented lines that follow it."""
    items: list[str] = []
    for line in text.splitlines():
        if line.startswith(" ") and items:
            items[-1] += f" {line.strip()}"
        else:
            items.append(line.strip())
    return items


def _section_item(item: str) -> str:
    name, colon, text = item.partition(": ")
    return _wrapped(_inline(f"`{name}`: {text}" if colon and name.isidentifier() else item), indent="  ")


def _inline(text: str) -> str:
    return re.sub("::$", ":", _ROLE.sub(r"`\1`", text).replace("``", "`"))


def _wrapped(text: str, indent: str = "") -> str:
    # A code span is one word: a line break inside it would be kept by some renderers.
    spans: list[str] = []

    def hide(match: re.Match[str]) -> str:
        spans.append(match[0])
        return f"\0{len(spans) - 1}\0".ljust(len(match[0]), "\1")

    lines = textwrap.fill(
        re.sub(r"`[^`]+`", hide, text),
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return re.sub("\0(\\d+)\0\1*", lambda match: spans[int(match[1])], lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
