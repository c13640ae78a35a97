"""What is proved of a chat template at start-up, before a session is spent on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.errors import SessionError
from miles_core.session.template.describe import describe
from miles_core.session.template.encoding import TextEncoder
from miles_core.session.template.proof import prove, prove_append

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.session.template.ids import IdDeriver
    from miles_core.session.template.render import Chat
    from miles_core.session.tokenizer import ChatTokenizer


def check_append_only(tokenizer: ChatTokenizer, roles: Sequence[str], *, tools: bool = False) -> None:
    """Prove at start-up that the template can append each of ``roles`` after a generated turn, cut or stopped.

    With ``tools`` results of calls are proved as well. What is found out here is remembered for the sessions.

    Raises:
        SessionError: naming the role and the reason, before a rollout is spent on it.
    """
    stops = _stops(tokenizer)
    for role in roles:
        _check(tokenizer.deriver(), ({"role": role, "content": "next"},), stops)
    if tools:
        result: Chat = {"role": "tool", "content": "result", "tool_call_id": "call00000"}
        for appended in ((result,), ({"role": "user", "content": "next"},)):
            _check(tokenizer.deriver(tools=True), appended, stops, tools=True)


def _check(deriver: IdDeriver, appended: tuple[Chat, ...], stops: Sequence[str], *, tools: bool = False) -> None:
    found = prove_append(deriver.text, deriver.independence, appended, stops, tools=tools)
    if not found.allowed:
        role = appended[0]["role"]
        raise SessionError(
            f"the chat template cannot append {role!r} messages token by token: {found.reason}",
            remedy="Let the environment answer in a role that `miles tito check` lists, or set [session] renderer.",
        )
    if not found.suffix:
        raise SessionError(f"the chat template appends nothing for a {appended[0]['role']!r} message")


def describe_sessions(name: str, tokenizer: ChatTokenizer, options: Mapping[str, Any]) -> str:
    """What can be appended to a generated turn, and whether calls and reasoning are found in it, as lines.

    ``options`` are those of :class:`miles_core.session.session.TokenSession`. What is found out here is remembered for
    the sessions.

    Raises:
        SessionError: if nothing can be appended, so that no session has a second turn.
    """
    parser = options["parser"]
    found = f"  tool calls          {_found(parser.tool_calls)}\n  reasoning           {_found(parser.reasoning)}\n"
    stops = _stops(tokenizer)
    if options["renderer"] is not None:
        return f"{name}: prompts are written by a renderer of your own\n{found}"
    deriver = tokenizer.deriver().at(options["clock"])
    encoder = TextEncoder(tokenizer.tokenizer, deriver.text.template.source)
    proof = prove(deriver.text, stops, encoder, deriver.independence)
    if not proof.holds:
        reasons = "; ".join(f"{each.roles}: {each.reason}" for each in proof.appends)
        raise SessionError(
            f"the chat template of {name} can append nothing after a generated turn: {reasons}",
            remedy="Look at it with `miles tito check`, or set session.renderer.",
        )
    return describe(name, proof) + found


def _found(parser: object) -> str:
    return "stay text" if parser is None else "are found"


def _stops(tokenizer: ChatTokenizer) -> list[str]:
    """The texts of the model's stop tokens, without which no turn would end."""
    if not tokenizer.stop_token_ids:
        raise SessionError(
            "the model directory names no stop token",
            remedy="Set eos_token_id in generation_config.json or eos_token in tokenizer_config.json.",
        )
    return [tokenizer.decode([each]) for each in tokenizer.stop_token_ids]
