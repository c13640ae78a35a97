"""What the adapters of all kinds share: signatures, and numbers out of what foreign functions return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.errors import PluginError, RolloutError
from miles_core.lib.signatures import accepted, fits, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable


def names(function: Callable[..., Any]) -> list[str]:
    """The names of a function's positional parameters; none where its signature cannot be read."""
    signature = signature_of(function, wrapped=True)
    parameters = signature.parameters.values() if signature else ()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def check(function: Callable[..., Any], expected: str, *arguments: str) -> None:
    """Refuse a function that cannot be called with ``arguments``, by position; ``expected`` shows the signature.

    Raises:
        PluginError: if it cannot.
    """
    signature = signature_of(function, wrapped=True)
    if signature is None or fits(signature, arguments):
        return
    name = getattr(function, "__name__", "the function")
    raise PluginError(
        f'adapter = "slime" calls {expected}; the signature here is {name}{signature}',
        remedy="Correct the signature, or remove the key `adapter` if the function is written for miles.",
    )


def keywords(function: Callable[..., Any], **values: Any) -> dict[str, Any]:
    """Those of ``values`` that the function takes as keywords."""
    return {name: values[name] for name in accepted(function, 0, tuple(values))}


def number(value: Any, key: str | None = None) -> float | None:
    """A reward as slime's functions return one: a number of any library, ``None``, or a mapping read at ``key``.

    Raises:
        RolloutError: if it is something else, or a mapping without ``key``.
    """
    if isinstance(value, dict):
        if key is None or key not in value:
            entries = ", ".join(map(str, value)) or "nothing"
            wanted = f"it lacks {key!r}" if key else "set reward_key in the table to the one that counts"
            raise RolloutError(f"the function returned a mapping of {entries}; {wanted}")
        value = value[key]
    if value is None:
        return None
    if isinstance(value, str | bytes | list | tuple):
        raise RolloutError(f"the function must return a number, a mapping or None; got {str(value)[:100]!r}")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise RolloutError(
            f"the function must return a number, a mapping or None; got {type(value).__name__}"
        ) from error
