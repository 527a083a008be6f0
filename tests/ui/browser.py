"""A headless Chromium through its own DevTools protocol: open a page, run JavaScript in it, wait for what must become true."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tab:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket, self.numbers = socket, itertools.count(1)
        self.wrong: list[str] = []  # what the page threw, and what its policy forbade

    async def call(self, method: str, **params: Any) -> Any:
        number = next(self.numbers)
        await self.socket.send_json({"id": number, "method": method, "params": params})
        while True:
            said = await self.socket.receive_json(timeout=30)
            if said.get("method") == "Runtime.exceptionThrown":
                self.wrong.append(str(said["params"]["exceptionDetails"].get("exception", {}).get("description")))
            if said.get("method") == "Log.entryAdded" and said["params"]["entry"]["source"] == "security":
                self.wrong.append(said["params"]["entry"]["text"])
            if said.get("id") == number:
                return said["result"]

    async def run(self, script: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str, seconds: float = 20.0) -> None:
        """Back as soon as `script` is true."""
        async with asyncio.timeout(seconds):
            while not await self.run(f"Boolean({script})"):
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def browsing(url: str) -> AsyncIterator[Tab]:
    assert CHROMIUM is not None
    home = Path(tempfile.mkdtemp(prefix="chromium-"))
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        f"--user-data-dir={home}",
        "--remote-debugging-port=0",
    ]
    quiet = {"stdout": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.DEVNULL}
    process = await asyncio.create_subprocess_exec(CHROMIUM, *flags, "about:blank", **quiet)
    try:
        async with asyncio.timeout(60):
            while not (where := home / "DevToolsActivePort").exists() or not where.read_text().count("\n"):
                await asyncio.sleep(0.05)
        port = where.read_text().split("\n")[0]
        async with aiohttp.ClientSession() as client:
            async with client.get(f"http://127.0.0.1:{port}/json/list") as reply:
                (page, *_) = [p for p in await reply.json(content_type=None) if p["type"] == "page"]
            async with client.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                for room in ("Page", "Runtime", "Log"):
                    await tab.call(f"{room}.enable")
                await tab.call("Page.navigate", url=url)
                yield tab
    finally:
        process.terminate()
        await process.wait()
        shutil.rmtree(home, ignore_errors=True)
