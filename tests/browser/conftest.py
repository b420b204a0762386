"""A real Chromium, driven through its DevTools pipe: no driver, no package, nothing listens on a port."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """Commands out, answers and events in: JSON objects that end with a zero byte."""

    def __init__(self, home: Path) -> None:
        # The child wants 3 and 4; ends that are higher cannot be overwritten while they are put there.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for pipe in (os.pipe(), os.pipe()) for end in pipe]
        child_in, self.out, self.inn, child_out = ends

        def place() -> None:
            os.dup2(child_in, 3)
            os.dup2(child_out, 4)

        self.process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={home}", "about:blank"],
            preexec_fn=place, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(child_in)
        os.close(child_out)
        self.numbers, self.rest, self.events = itertools.count(1), b"", []

    def close(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            self.call("Browser.close", limit=5)
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.inn)

    def read(self, limit: float) -> dict[str, Any]:
        until = time.monotonic() + limit
        while b"\0" not in self.rest:
            if not select.select([self.inn], [], [], max(until - time.monotonic(), 0))[0]:
                raise TimeoutError("the browser does not answer")
            more = os.read(self.inn, 1 << 20)
            if not more:
                raise OSError("the browser ended")
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\0")
        return json.loads(line)

    def call(self, method: str, session: str = "", limit: float = 120, **params: Any) -> dict[str, Any]:
        number = next(self.numbers)
        order = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        data = json.dumps(order).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data) :]
        while True:
            found = self.read(limit)
            if found.get("id") == number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]
            if "method" in found:
                self.events.append(found)


class Tab:
    """One page: what it says on the console, what it asks for, and what a reader sees."""

    def __init__(self, browser: Browser, width: int, height: int, scheme: str, scripts: bool) -> None:
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.target = target
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(width, height)
        self.media(scheme)
        if not scripts:
            self.call("Emulation.setScriptExecutionDisabled", value=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def size(self, width: int, height: int) -> None:
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )  # fmt: skip

    def media(self, scheme: str = "light", kind: str = "") -> None:
        self.call(
            "Emulation.setEmulatedMedia", media=kind, features=[
                {"name": "prefers-color-scheme", "value": scheme},
                {"name": "prefers-reduced-motion", "value": "reduce"},
            ],
        )  # fmt: skip

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait(lambda: self.mine("Page.loadEventFired"), "the page to load")

    def wait(self, true: Any, what: str, limit: float = 120) -> None:
        until = time.monotonic() + limit
        while not true():
            if time.monotonic() > until:
                raise TimeoutError(f"waited for {what}")
            self.run("1")
            time.sleep(0.05)

    def mine(self, method: str) -> list[dict[str, Any]]:
        events = [e for e in self.browser.events if e.get("sessionId") == self.session and e["method"] == method]
        return [e["params"] for e in events]

    def run(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", script))
        return found["result"].get("value")

    def key(self, name: str, code: int) -> None:
        text = "\r" if name == "Enter" else " " if name == " " else ""
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code, **extra)

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of the page: console, exceptions, refused requests and policies."""
        found = [str(e["exceptionDetails"]) for e in self.mine("Runtime.exceptionThrown")]
        found += [str(e["args"]) for e in self.mine("Runtime.consoleAPICalled") if e["type"] in ("error", "warning")]
        return found + [e["entry"]["text"] for e in self.mine("Log.entryAdded") if e["entry"]["level"] == "error"]

    @property
    def requests(self) -> list[str]:
        return [e["request"]["url"] for e in self.mine("Network.requestWillBeSent")]

    def picture(self, path: Path, whole: bool = True) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        path.write_bytes(base64.b64decode(data["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        box = self.call("Page.getLayoutMetrics")["cssContentSize"]
        height = min(box["height"], 16000)
        return {"clip": {"x": 0, "y": 0, "width": box["width"], "height": height, "scale": 1}}

    def print(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory):
    if not CHROMIUM:
        pytest.skip("no Chromium here: `apt-get install chromium`, or run `make test-browser`")
    made = Browser(tmp_path_factory.mktemp("chromium"))
    yield made
    made.close()


@pytest.fixture
def tab(browser: Browser):
    """Open a report: ``tab(path, width, scheme, scripts)``."""
    made: list[Tab] = []

    def opened(path: Path, width: int = 1440, scheme: str = "light", scripts: bool = True) -> Tab:
        browser.events.clear()
        made.append(Tab(browser, width, 900, scheme, scripts))
        made[-1].open(path)
        return made[-1]

    yield opened
    for one in made:
        browser.call("Target.closeTarget", targetId=one.target)
