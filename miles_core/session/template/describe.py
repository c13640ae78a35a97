"""A proof as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from miles_core.session.template.proof import Append, Proof


def as_dict(proof: Proof) -> dict[str, Any]:
    """The proof as plain values."""
    forms = proof.forms
    return {
        "allowed": proof.holds,
        "stops": list(proof.stops),
        "generation_prompt": proof.generation_prompt,
        "close": proof.close,
        "forms": {
            "parts": sorted(forms.parts),
            "arguments": forms.arguments,
            "tools": forms.tools,
            "no_tools": forms.no_tools,
            "calls": forms.calls,
            "no_text": forms.no_text,
        },
        "appends": [
            {
                "roles": each.roles.split(),
                "allowed": each.allowed,
                "suffix": each.suffix,
                "depends_on_history": not each.same,
                "reason": each.reason,
                "rewrites": each.rewrites,
            }
            for each in proof.appends
        ],
        "token_difference": proof.token_difference,
    }


def describe(name: str, proof: Proof) -> str:
    """The proof for people."""
    forms = proof.forms
    calls = f"shown, arguments as {forms.arguments}, tools {forms.tools}" if forms.calls else "not shown"
    lines = [
        f"{name}: {'can' if proof.holds else 'cannot'} be continued token by token",
        f"  generation prompt   {proof.generation_prompt!r}",
        f"  close, next header  {proof.close!r}",
        f"  stop tokens         {', '.join(map(repr, proof.stops)) or 'not known: name a model directory'}",
        f"  calls               {calls}",
    ]
    if forms.parts:
        lines.append(f"  contents as parts   {', '.join(sorted(forms.parts))}")
    lines += [f"  append {each.roles:12} {_verdict(each)}" for each in proof.appends]
    if proof.token_difference is not None:
        lines.append(f"  tokens              {proof.token_difference}")
    rewritten = next((each.rewrites for each in proof.appends if each.rewrites), None)
    if rewritten is not None:
        lines.append(f"  a fresh render rewrites what was generated, which is kept: {rewritten}")
    return "\n".join(lines) + "\n"


def _verdict(each: Append) -> str:
    if not each.allowed:
        return f"no: {each.reason}"
    return "yes" if each.same else "yes, written as the history demands"
