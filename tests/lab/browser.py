"""A browser without a window: Chromium, driven through two pipes by its own protocol (DevTools).

https://chromedevtools.github.io/devtools-protocol/ names the methods; messages are JSON, each ended by a zero byte.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from base64 import b64decode

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60
KEYS = {"ArrowDown": 40, "ArrowRight": 39, "ArrowUp": 38, "ArrowLeft": 37, "Tab": 9, "Enter": 13, "+": 187, "-": 189}


def why_not() -> str:
    """Why there is no browser; empty where there is one."""
    return "" if _program() else f"needs one of {', '.join(NAMES)}"


def _program() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """Chromium, until the block ends. profile: an empty folder for its state."""

    def __init__(self, profile):
        self.profile, self._last, self._buffer = profile, 0, b""

    def __enter__(self):
        theirs, self._write = os.pipe()
        self._read, answers = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options += ["--remote-debugging-pipe", "--no-first-run", f"--user-data-dir={self.profile}"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        # The protocol wants descriptors 3 and 4; bash, since sh may know descriptors of one digit alone.
        shell = ["bash", "-c", f'exec "$0" "$@" 3<&{theirs} 4>&{answers}', _program(), *options]
        self._process = subprocess.Popen(shell, pass_fds=(theirs, answers), **quiet)
        os.close(theirs)
        os.close(answers)
        return self

    def __exit__(self, *_):
        os.close(self._write)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def open(self, path, *, width=1440, height=900, dark=False):
        """A page of its own, in a window of this size; loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.prefer("dark" if dark else "light")
        page.call("Page.navigate", url=path.absolute().as_uri())
        page.until("Page.loadEventFired")
        return page

    def call(self, method, session=None, *, into=None, **parameters):
        """The answer to a method; events of `session` on the way go to `into`."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self.message(into)).get("id") != self._last:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def message(self, into=None):
        """The next message; an event is kept in `into`."""
        ends = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready = select.select([self._read], [], [], max(ends - time.monotonic(), 0))[0]
            piece = os.read(self._read, 1 << 20) if ready else b""
            assert piece, "the browser does not answer"
            self._buffer += piece
        text, self._buffer = self._buffer.split(b"\0", 1)
        found = json.loads(text)
        if "method" in found and into is not None:
            into.append(found)
        return found


class Page:
    """A page that is loaded.

    events : what it has told
    """

    def __init__(self, browser, session):
        self.browser, self.session, self.events = browser, session, []

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, into=self.events, **parameters)

    def until(self, event):
        """Wait for an event."""
        while all(found["method"] != event for found in self.events):
            self.browser.message(self.events)

    def resize(self, width, height, scale=1):
        size = {"width": width, "height": height, "deviceScaleFactor": scale}
        self.call("Emulation.setDeviceMetricsOverride", mobile=width < 600, **size)

    def prefer(self, scheme):
        """What the system of the reader says: "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def value(self, expression):
        """Of an expression of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key, times=1):
        """A key, down and up."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        for _ in range(times):
            for kind in ("keyDown", "keyUp"):
                more = text if kind == "keyDown" else {}
                self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=KEYS[key], **more)

    def picture(self, path, whole=False):
        """A PNG of the window, or of the whole page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(b64decode(data))

    def errors(self):
        """What the console says is wrong, exceptions included."""
        self.value("new Promise((done) => setTimeout(done, 100))")
        found = []
        for event in self.events:
            about = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(about["exceptionDetails"])
            elif event["method"] == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
                found.append(about["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
                found.append(about["args"])
        return found
