"""Learns how a template parts reasoning from content, from renders of marks or from what it takes contents apart at."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from miles_core.errors import SessionError
from miles_core.session.parsing.channels import Channels
from miles_core.session.parsing.reasoning import Reasoning
from miles_core.session.parsing.shown import ASK
from miles_core.session.template.pieces import pieces, special

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.session.parsing.shown import Shower
    from miles_core.session.template.render import ChatTemplate

_EMPTY_BLOCK = re.compile(
    r"(?P<open>[<\[](?P<tag>[^<>\[\]\s/]+)[>\]])(?P<space>\s*)(?P<close>[<\[]/(?P<same>[^<>\[\]\s]+)[>\]])(?P<gap>\s*)$"
)
_CLOSING = re.compile(r"<(?=/)[^<>\s]+>|\[/[^\[\]\s]+\]")


@dataclass(frozen=True)
class Block:
    """A turn that shows its reasoning: the text before it, and the text between it and what follows."""

    before: str
    between: str


def learn_reasoning(shower: Shower) -> Reasoning | Channels | None:
    """How reasoning is written, ``None`` where nothing can be learned."""
    blocks = list(_blocks(shower))
    for block in blocks:
        if (channels := _channels(shower, block)) is not None:
            return channels
    found = next((each for block in blocks if (each := _written(block)) is not None), None) or _taken_apart(shower)
    if found is None and (found := _switched_off(shower)) is None:
        found = Reasoning("", "")
    found = _opened(shower, _with_said(shower, found))
    return None if found == Reasoning("", "") else found


def _opened(shower: Shower, found: Reasoning) -> Reasoning:
    """With what the prompt has opened."""
    prompt = shower.prompt
    if not found.open or not prompt.rstrip().endswith(found.open):
        return found
    given = prompt[len(prompt.rstrip()) :]
    return replace(found, opened=True, lead=found.lead.removeprefix(given))


def _blocks(shower: Shower) -> Iterator[Block]:
    """Turns that show their reasoning: beside content, beside calls, and as a part of the content."""
    marks = shower.marks
    calls = [shower.call(0, {marks.keys[0]: marks.values[0]})]
    thought = {"reasoning_content": marks.reasoning}
    parts = [{"type": "thinking", "thinking": marks.reasoning}, {"type": "text", "text": marks.content}]
    for turn, following in (
        ({"content": marks.content, **thought}, marks.content),
        ({"content": marks.content, **thought, "tool_calls": calls}, marks.content),
        ({"content": "", **thought, "tool_calls": calls}, marks.names[0]),
        ({"content": parts}, marks.content),
    ):
        before, found, rest = shower.render(turn).rpartition(marks.reasoning)
        between, shown, _ = rest.partition(following)
        if found and shown:
            yield Block(before, between)


def _written(block: Block) -> Reasoning | None:
    """From a turn that shows its reasoning before its content."""
    before = pieces(block.before)
    at = max((index for index, piece in enumerate(before) if special(piece)), default=-1)
    opening = "".join(before[at:]) if at >= 0 else ""
    after = pieces(block.between)
    close = next((index for index, piece in enumerate(after) if special(piece)), -1)
    trail = "".join(after[: max(close, 0)])
    if not opening or close < 0 or trail.strip():
        return None
    rest = "".join(after[close + 1 :])
    return Reasoning(
        open=opening.rstrip(),
        close=after[close],
        lead=opening[len(opening.rstrip()) :],
        trail=trail,
        gap=rest[: len(rest) - len(rest.lstrip())],
    )


def _taken_apart(shower: Shower) -> Reasoning | None:
    """From the marks at which the template cuts contents, such as ``content.split('</think>')``."""
    for close in _cuts(shower.deriver.template):
        opening = close.replace("/", "", 1)
        text = shower.plain()
        block = re.search(re.escape(opening) + r"(\s*)" + re.escape(close) + r"(\s*)", text)
        prompt = re.search(re.escape(opening) + r"(\s*)$", shower.prompt)
        lead = prompt[1] if prompt else ""
        return Reasoning(opening, close, lead=lead, trail=lead, gap=block[2] if block else lead * 2)
    return None


def _cuts(template: ChatTemplate) -> Iterator[str]:
    """Closing marks at which a template splits texts, or that it looks for in them."""
    from jinja2 import nodes

    tree = template.parsed()
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in {"split", "partition", "rsplit", "rpartition"}:
            for argument in call.args[:1]:
                if isinstance(argument, nodes.Const) and _CLOSING.fullmatch(str(argument.value)):
                    yield str(argument.value)
    for compare in tree.find_all(nodes.Compare):
        if isinstance(compare.expr, nodes.Const) and _CLOSING.fullmatch(str(compare.expr.value)):
            yield str(compare.expr.value)


def _switched_off(shower: Shower) -> Reasoning | None:
    """From the empty block that a turn holds where an argument of the template, such as a switch, is off."""
    template = shower.deriver.template
    for name in sorted(template.reads() - {"messages", "tools", "add_generation_prompt"}):
        off = replace(template, variables={**template.variables, name: False})
        try:
            prompt = off.render(shower.deriver.forms.messages([ASK]), None, prompt=True)
        except SessionError:
            continue
        if (block := _EMPTY_BLOCK.search(prompt)) is not None and block["tag"] == block["same"]:
            lead = block["space"][: len(block["space"]) // 2]
            return Reasoning(block["open"], block["close"], lead, lead, block["gap"])
    return None


def _with_said(shower: Shower, found: Reasoning) -> Reasoning:
    """With what stands around the content of a turn, if there is something beside the turn's own marks."""
    before, _, after = shower.plain().rpartition(shower.marks.content)
    if not shower.prompt or not before.startswith(shower.prompt):
        return found
    opening = before[len(shower.prompt) :]
    if found.close and found.close in opening:
        opening = opening.rpartition(found.close)[2].removeprefix(found.gap)
    elif not opening.strip():
        return replace(found, before=opening)
    closing = next((piece for piece in pieces(after) if special(piece)), "")
    opening = opening.strip()
    if opening and special(pieces(opening)[0]) and closing:
        return replace(found, said_open=opening, said_close=closing)
    return found


def _channels(shower: Shower, block: Block) -> Channels | None:
    """A turn in which reasoning and content are messages of their own."""
    start = shower.prompt.removeprefix(shower.asked)
    if not start.strip() or start == shower.prompt or start not in block.between:
        return None
    header = block.before.rpartition(start)[2]
    end, _, said = block.between.partition(start)
    marked = [piece for piece in pieces(header) if special(piece)]
    if not marked or not header.endswith(marked[-1]) or not said.endswith(marked[-1]) or not end.strip():
        return None
    return Channels(start, marked[-1], end.strip(), header.removesuffix(marked[-1]).strip())
