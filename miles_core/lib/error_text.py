"""What a plugin raised or returned, as a short text that is always there."""

from __future__ import annotations

LONGEST = 500


def error_text(error: BaseException) -> str:
    """``Type: message``; a long message is cut, and one that cannot be made is said to be so."""
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException as broken:  # noqa: BLE001 - the plugin's own `__str__`, which may do anything
        return f"{name} (its text cannot be had: {type(broken).__name__})"
    return f"{name}: {shortened(text)}" if text else name


def value_text(value: object, longest: int = 60) -> str:
    """The value's ``repr``, cut; its type where there is none."""
    try:
        return shortened(repr(value), longest)
    except BaseException:  # noqa: BLE001 - the plugin's own `__repr__`, which may do anything
        return f"a {type(value).__name__}"


def shortened(text: str, longest: int = LONGEST) -> str:
    """The text, cut after ``longest`` characters."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
