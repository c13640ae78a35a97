"""The parser of a chat template."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from miles_core.session.parsing.channels import ChannelCalls, ChannelReasoning, Channels
from miles_core.session.parsing.learn_calls import learn_calls
from miles_core.session.parsing.learn_reasoning import learn_reasoning
from miles_core.session.parsing.shown import Shower
from miles_core.session.parsing.turn import TurnParser

if TYPE_CHECKING:
    from miles_core.session.parsing.calls import Calls
    from miles_core.session.template.boundary import Deriver


def derive_parser(deriver: Deriver) -> TurnParser:
    """The parser that a template tells; what it does not tell stays text."""
    shower = Shower(deriver)
    reasoning = learn_reasoning(shower)
    if isinstance(reasoning, Channels):
        channels = _with_calls(reasoning, learn_calls(shower) if deriver.forms.calls else None)
        return TurnParser(ChannelCalls(channels) if channels.recipient else None, ChannelReasoning(channels))
    calls = learn_calls(shower, reasoning.close if reasoning else "") if deriver.forms.calls else None
    return TurnParser(calls, reasoning)


def _with_calls(channels: Channels, calls: Calls | None) -> Channels:
    """Channels that name the function of a call in its header."""
    if calls is None or not calls.head.strip():
        return channels
    return replace(channels, recipient=calls.head, call_end=calls.tail)
