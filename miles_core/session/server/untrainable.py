"""Fields that every dialect refuses: what they ask for could not be trained, or is the server's own to say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.session.server.fields import shown
from miles_core.session.server.request import ClientError

if TYPE_CHECKING:
    from collections.abc import Mapping

# with the values that change nothing
_RESHAPING: dict[str, tuple[object, ...]] = {
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
}
RESHAPING = frozenset(_RESHAPING)
"""Names that :func:`refuse_untrainable` has looked at: a dialect must not call them unknown."""

_OWN = ("input_ids", "return_logprob", "logprob_start_len", "routed_experts_start_len", "extra_key", "rid")


def refuse_untrainable(body: Mapping[str, Any]) -> None:
    """Refuse what reshapes the distribution that is sampled, and what the server decides itself.

    Raises:
        ClientError: naming the field.
    """
    for name, neutral in _RESHAPING.items():
        value = body.get(name)
        if value is not None and (isinstance(value, bool) or value not in neutral):
            raise ClientError(
                f"{name} = {shown(value)} is not possible: the policy could not be trained on what is sampled so",
                param=name,
                code="not_trainable",
                remedy=f"Leave {name} out; use temperature.",
            )
    for name, value in body.items():
        if value is not None and (name in _OWN or name.startswith("return_")):
            raise ClientError(
                f"{name} is decided by the session server", param=name, remedy=f"Leave {name} out; send messages."
            )
    if body.get("chat_template_kwargs") is not None or body.get("chat_template") is not None:
        name = "chat_template" if body.get("chat_template") is not None else "chat_template_kwargs"
        raise ClientError(
            f"{name} cannot change during a run: the same template has to write all of a conversation",
            param=name,
            remedy=f"Leave {name} out.",
        )
