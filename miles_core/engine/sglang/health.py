"""What a server answers about itself."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any

from miles_core.errors import EngineError

HEALTH_SECONDS = 30.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def is_healthy(url: str, seconds: float = HEALTH_SECONDS) -> bool:
    """Whether the server generates; SGLang answers after a token of its own or of a request, at most 20 s later."""
    try:
        with _DIRECT.open(f"{url}/health", timeout=seconds) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False


def is_there(url: str, seconds: float) -> bool:
    """Whether anything answers, or at least takes the connection and lets us wait: a busy server is not a dead one."""
    try:
        with _DIRECT.open(f"{url}/model_info", timeout=seconds):
            return True
    except (urllib.error.HTTPError, TimeoutError):
        return True
    except OSError:
        return False


def is_torn(url: str, seconds: float) -> bool:
    """Whether our receiver in the server says that its weights are torn, which the next whole update puts right."""
    try:
        with _DIRECT.open(f"{url}/weights/layout", timeout=seconds) as answer:
            layout = json.loads(answer.read())
    except (OSError, ValueError):
        return False
    return isinstance(layout, dict) and layout.get("torn") is True


def why_unreachable(url: str, seconds: float) -> str | None:
    """Why no connection can be made, such as a refusal or an unknown host; ``None`` if one can, or after a time-out."""
    try:
        with _DIRECT.open(f"{url}/model_info", timeout=seconds):
            return None
    except urllib.error.HTTPError:
        return None
    except urllib.error.URLError as error:
        return None if isinstance(error.reason, TimeoutError) else str(error.reason)
    except OSError:
        return None


def model_info(url: str, seconds: float = HEALTH_SECONDS) -> dict[str, Any]:
    """What ``/model_info`` says.

    Raises:
        EngineError: if this is no server of SGLang.
    """
    try:
        with _DIRECT.open(f"{url}/model_info", timeout=seconds) as answer:
            info = json.loads(answer.read())
    except (OSError, ValueError) as error:
        raise EngineError(f"{url} is healthy, but /model_info failed: {error}", remedy="Is this SGLang?") from None
    if not isinstance(info, dict) or "model_path" not in info:
        raise EngineError(f"{url}/model_info names no model_path", remedy="Is this SGLang?")
    return info
