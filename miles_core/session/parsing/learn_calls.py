"""Learns how a template writes calls, from renders of marks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from miles_core.session.parsing.calls import Calls
from miles_core.session.parsing.fixed import without_end
from miles_core.session.parsing.learn_arguments import arguments_of
from miles_core.session.parsing.learn_objects import named_objects_of, objects_of
from miles_core.session.template.pieces import common_end, common_start, pieces, special

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.session.parsing.forms import Found
    from miles_core.session.parsing.shown import Shower


def learn_calls(shower: Shower, closing: str = "") -> Calls | None:
    """How calls are written, ``None`` where nothing can be learned; ``closing`` is what ends reasoning."""
    marks = shower.marks
    both = [shower.call(index, {marks.keys[index]: marks.values[index]}) for index in (0, 1)]
    for calls, values in ((both, marks.values), (both[:1], marks.values[:1])):
        for body, _ in shower.calling(calls, values):
            if closing and closing in body:  # an empty block of thoughts before the calls
                body = body.partition(closing)[2]
            found = _find_form(shower, body, len(calls))
            if found is not None:
                return _framed(shower, body, found)
    return None


def _find_form(shower: Shower, body: str, count: int) -> list[Found] | None:
    """The form of the calls of a turn, once for each of them; ``None`` if there is none that is known."""
    for find in (objects_of, named_objects_of, arguments_of):
        if (found := find(shower, body, count)) is not None:
            return found
    return None


def _framed(shower: Shower, body: str, found: Sequence[Found]) -> Calls:
    """The form with the fixed pieces around it."""
    first, last = found[0], found[-1]
    before, after = body[: first.start].partition(shower.marks.content), last.after(body)
    lead = before[2] or before[0]
    end = without_end(after, "".join(common_end(after, shower.close())))
    if len(found) == 1:
        head, tail, opened, closed, separator = lead, end, "", "", ""
    else:
        between = first.between(body, last)
        head = "".join(common_end(lead, between))
        rest = between[: len(between) - len(head)]
        tail = "".join(common_start(rest, after))
        separator = rest[len(tail) :]
        opened = lead[: len(lead) - len(head)]
        closed = end[len(tail) :] if opened.strip() else ""
        closed = _as_when_followed(shower, tail, closed)
    tail = tail.removeprefix(first.taken)
    gap, gap_after = _gaps(shower, opened + head, body, last)
    calls = Calls(
        first.form, head.strip(), tail.strip(), separator.strip(), opened.strip(), closed.strip(), gap, gap_after
    )
    return replace(calls, ending=_ending(shower, calls, end))


def _ending(shower: Shower, calls: Calls, end: str) -> str:
    """What a text may lack at its end: what a lone call lacks too, or a last marker behind which nothing follows.

    Such a marker is a stop token, and a turn that ended with it does not hold it.
    """
    marks = shower.marks
    alone = next(shower.calling([shower.call(0, {marks.keys[0]: marks.values[0]})], marks.values[:1]), None)
    if alone is not None and calls.close and calls.close not in alone[0]:
        return calls.close
    last = pieces(calls.close or calls.tail)[-1:]
    closes = shower.close().strip()
    return last[0] if last and special(last[0]) and not closes and end.rstrip().endswith(last[0]) else ""


def _as_when_followed(shower: Shower, tail: str, closed: str) -> str:
    """The close of all calls without what ends the conversation: results may follow in another way."""
    marks = shower.marks
    both = [shower.call(index, {marks.keys[index]: marks.values[index]}) for index in (0, 1)]
    for content in ("", None, marks.content):
        text = shower.render({"content": content, "tool_calls": both}, follow=True)
        at = text.find(tail + closed[:1], text.rfind(marks.values[1]))
        if closed and at >= 0:
            return "".join(common_start(text[at + len(tail) :], closed))
    return closed


def _gaps(shower: Shower, opening: str, body: str, last: Found) -> tuple[str, str]:
    """The white space between content and calls, and between calls and content after them."""
    marks = shower.marks
    for follow in (False, True):
        turn = {"content": marks.content, "tool_calls": [shower.call(0, {marks.keys[0]: marks.values[0]})]}
        text = shower.render(turn, follow=follow)
        at, call = text.rfind(marks.content), text.rfind(marks.values[0])
        if at < 0 or call < 0:
            continue
        if at > call:
            before = text[call:at]
            return "", before[len(before.rstrip()) :]
        after = text[at + len(marks.content) :]
        space = after[: len(after) - len(after.lstrip())]
        if after.lstrip().startswith(opening.strip()):
            return space, ""
    return "", ""
