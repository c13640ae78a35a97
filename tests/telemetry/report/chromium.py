"""Drives a headless Chromium over its DevTools protocol."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-port=0",
    "--window-size=1400,900",
)  # fmt: skip
SECONDS = 30.0
KEY_CODES = {"ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35}


@asynccontextmanager
async def browser(program: str, profile: Path) -> AsyncIterator[Callable[[Path], Awaitable[Tab]]]:
    """A browser process with an empty profile; yields what opens a file in its tab."""
    process = await asyncio.create_subprocess_exec(
        program, *FLAGS, f"--user-data-dir={profile}", "about:blank",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(SECONDS):
            address = await _address(process)
        async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=0) as socket:
            yield Tab(socket).open
    finally:
        process.kill()
        await process.communicate()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    said = []
    async for line in process.stderr:
        said.append(line.decode(errors="replace"))
        if said[-1].startswith("DevTools listening on "):
            return said[-1].split()[-1]
    raise AssertionError("chromium ended: " + "".join(said))


class Tab:
    """One page; ``requests`` are the addresses that it asked for, ``problems`` what its console complained of."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._session: str | None = None
        self.requests: list[str] = []
        self.problems: list[str] = []

    async def open(self, page: Path) -> Tab:
        """Show a file and wait until it is loaded."""
        target = await self._call("Target.createTarget", url="about:blank")
        attached = await self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self._call(f"{domain}.enable")
        await self._call("Page.navigate", url=page.as_uri())
        await self.until("document.readyState === 'complete' && document.body.dataset.ready === 'true'")
        return self

    async def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        result = await self._call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait, frame by frame, until a JavaScript condition holds."""
        looking = f"const look = () => ({condition}) ? done() : requestAnimationFrame(look)"
        try:
            async with asyncio.timeout(SECONDS):
                await self.run(f"new Promise((done) => {{ {looking}; look(); }})")
        except TimeoutError:
            raise AssertionError(f"never came true: {condition}; console: {self.problems}") from None

    async def key(self, name: str) -> None:
        """Press and release a key."""
        for kind in ("rawKeyDown", "keyUp"):
            await self._call("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=KEY_CODES[name])

    async def mouse_over(self, selector: str) -> None:
        """Move the mouse to the middle of an element, when scrolling to it is over."""
        await self.run(
            f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}}),"
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
        )
        box = await self.run(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        await self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def _call(self, method: str, **params: Any) -> Any:
        number = next(self._ids)
        request = {"id": number, "method": method, "params": params}
        await self._socket.send_json(request | ({"sessionId": self._session} if self._session else {}))
        while True:
            message = await self._socket.receive_json(timeout=SECONDS)
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded":
            self.problems.append(str(params["entry"]["text"]))
