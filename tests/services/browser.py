"""A real browser for tests: Debian's chromium without a window, driven through a pipe with its own protocol.

No driver is installed for it. Playwright brings a Node of its own (46 MB) and wants the browser build that belongs to
it; what these tests ask (open, resize, evaluate, listen, draw) are ten commands of a protocol that has been stable for
years. The pipe needs no port. No test is here.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_SWITCHES = (
    "--headless --remote-debugging-pipe --no-first-run --no-default-browser-check --disable-gpu --disable-extensions "
    "--disable-background-networking --disable-component-update --disable-sync --disable-dev-shm-usage --mute-audio "
    "--force-color-profile=srgb --hide-scrollbars --font-render-hinting=none"
)


class Browser:
    """A running browser with one page. ``events`` are those of the page since it was last opened."""

    def __init__(self, folder: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Numbers 3 and 4 are the pipe's; ours must not stand there when they are set.
        given = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in (theirs_in, theirs_out)]
        words = [str(PROGRAM), *_SWITCHES.split(), f"--user-data-dir={folder}"]
        if os.geteuid() == 0:
            words.append("--no-sandbox")  # its sandbox refuses root
        silent = os.open(folder / "chromium.log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.pid = os.posix_spawn(
            words[0],
            [*words, "about:blank"],
            {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, given[0], 3),
                (os.POSIX_SPAWN_DUP2, given[1], 4),
                (os.POSIX_SPAWN_DUP2, silent, 1),
                (os.POSIX_SPAWN_DUP2, silent, 2),
            ],
            setsid=True,
        )
        for one in (theirs_in, theirs_out, *given, silent):
            os.close(one)
        self.events: list[dict[str, Any]] = []
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        """End the browser and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._in)
        os.close(self._out)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Carry out one command and return its result; what happens meanwhile is kept in ``events``."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(60.0)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return dict(answer["result"])

    def _next(self, limit_s: float) -> dict[str, Any]:
        end = time.monotonic() + limit_s
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"chromium said nothing for {limit_s:g} s"
            block = os.read(self._in, 1 << 20)
            assert block, "chromium has ended"
            self._buffer += block
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "id" not in message:
            self.events.append(message)
        return message

    # -- the page ----------------------------------------------------------------------------------------------------

    def shape(self, width: int, height: int = 900, *, dark: bool = False, scripts: bool = True) -> None:
        """Set the size of the window in CSS pixels, the wished colours, and whether scripts may run."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)

    def open(self, address: str) -> None:
        """Load a page and wait until it and all it asks for are there."""
        self.events.clear()
        self.ask("Page.navigate", url=address)
        while not any(one["method"] == "Page.loadEventFired" for one in self.events):
            self._next(60.0)
        # A frame later whatever the page does at its start has been done and told.
        self.ask("Runtime.evaluate", expression="1")

    def eval(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, promises awaited."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Return what stands on the console, and every exception."""
        told = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening"}
        return [json.dumps(one["params"])[:2000] for one in self.events if one["method"] in told]

    def requests(self) -> list[str]:
        """Return the address of everything that was asked for, the page itself first."""
        return [one["params"]["request"]["url"] for one in self.events if one["method"] == "Network.requestWillBeSent"]

    def picture(self, path: Path) -> None:
        """Write the whole page as a PNG."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def paper(self) -> bytes:
        """Return the page as it is printed, a PDF."""
        return base64.b64decode(self.ask("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Run a browser with its files below ``folder``."""
    one = Browser(folder)
    try:
        yield one
    finally:
        one.close()
