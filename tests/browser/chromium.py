"""Debian's chromium without a head, driven over its DevTools protocol: one page, its console and its requests."""

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

COMMAND = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
         "--force-color-profile=srgb", "--disable-dev-shm-usage")  # fmt: skip


class PageError(Exception):
    """The browser refused a command or a script failed."""


@dataclass
class Page:
    """One tab. console: messages and uncaught errors; requests: every URL asked for."""

    socket: aiohttp.ClientWebSocketResponse
    session_id: str
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    downloads: list[str] = field(default_factory=list)
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    _waiting: dict[int, "asyncio.Future[Any]"] = field(default_factory=dict)
    _last: int = 0

    async def send(self, method: str, browser: bool = False, **params: Any) -> Any:
        """One command; its result. Raises PageError if the browser says no."""
        self._last += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._last] = answer
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self.session_id and not browser:
            message["sessionId"] = self.session_id
        await self.socket.send_str(json.dumps(message))
        return await asyncio.wait_for(answer, 60)

    async def listen(self) -> None:
        """Read what the browser says until it goes."""
        async for raw in self.socket:
            message = json.loads(raw.data)
            if "id" in message:
                waiting = self._waiting.pop(message["id"])
                if "error" in message:
                    waiting.set_exception(PageError(message["error"]["message"]))
                else:
                    waiting.set_result(message["result"])
            else:
                self._event(message["method"], message["params"])

    def _event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            self.console.append(
                " ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"])
            )
        elif method == "Runtime.exceptionThrown":
            self.console.append(
                params["exceptionDetails"].get("exception", {}).get("description", "exception")
            )
        elif method == "Log.entryAdded":
            self.console.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded.set()
        elif method == "Browser.downloadWillBegin":
            self.downloads.append(params["suggestedFilename"])

    async def open(self, url: str) -> None:
        """Go to a URL and wait until it is loaded."""
        self.loaded.clear()
        await self.send("Page.navigate", url=url)
        await asyncio.wait_for(self.loaded.wait(), 60)

    async def size(self, width: int, height: int = 900, scale: float = 1, mobile: bool = False) -> None:
        """Make the window so large, in CSS pixels."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=mobile,
        )

    async def media(self, scheme: str = "light", kind: str = "") -> None:
        """Pretend a colour scheme, and `print` or the screen."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.send("Emulation.setEmulatedMedia", media=kind, features=features)

    async def run(self, script: str) -> Any:
        """Evaluate an expression (a promise is awaited) and return its value. Raises PageError if it throws."""
        result = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise PageError(str(result["exceptionDetails"].get("exception", {}).get("description")))
        return result["result"].get("value")

    async def picture(self, path: Path, clip: dict[str, float] | None = None, whole: bool = False) -> None:
        """A PNG of the window, of a part of the page, or of the whole page."""
        options: dict[str, Any] = {"format": "png", "captureBeyondViewport": bool(clip) or whole}
        if whole:
            box = (await self.send("Page.getLayoutMetrics"))["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": box["width"], "height": box["height"]}
        if clip:
            options["clip"] = {**clip, "scale": 1}
        data = (await self.send("Page.captureScreenshot", **options))["data"]
        path.write_bytes(base64.b64decode(data))

    async def pdf(self, path: Path) -> None:
        """The page as an A4 PDF, margins as the page asks for."""
        data = (await self.send("Page.printToPDF", preferCSSPageSize=True, printBackground=True))["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browser() -> Iterator[str]:
    """A running browser; gives the address of its protocol. It is gone afterwards, and so is its profile."""
    profile = Path(tempfile.mkdtemp(prefix="servelab-chromium-"))
    process = subprocess.Popen(
        [COMMAND, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield _door(profile)
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(profile, ignore_errors=True)


@asynccontextmanager
async def page(door: str, downloads: Path | None = None) -> AsyncIterator[Page]:
    """An empty tab in a context of its own: nothing is remembered from another one."""
    async with aiohttp.ClientSession() as http, http.ws_connect(door, max_msg_size=0) as socket:
        tab = Page(socket, "")
        listener = asyncio.create_task(tab.listen())
        try:
            context = (await tab.send("Target.createBrowserContext"))["browserContextId"]
            target = await tab.send("Target.createTarget", url="about:blank", browserContextId=context)
            attached = await tab.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
            tab.session_id = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
                await tab.send(f"{domain}.enable")
            behaviour = (
                {"behavior": "allow", "downloadPath": str(downloads)} if downloads else {"behavior": "deny"}
            )
            await tab.send(
                "Browser.setDownloadBehavior",
                browser=True,
                eventsEnabled=True,
                browserContextId=context,
                **behaviour,
            )
            yield tab
            await tab.send("Target.disposeBrowserContext", browser=True, browserContextId=context)
        finally:
            listener.cancel()


def _door(profile: Path) -> str:
    """Address of the browser's protocol, from port and path that it writes into its profile."""
    for _ in range(600):
        file = profile / "DevToolsActivePort"
        if file.exists() and len(lines := file.read_text().split()) == 2:
            return f"http://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.1)
    raise PageError(f"{COMMAND} did not open its door within 60 s")
