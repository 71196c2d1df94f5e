# SPDX-License-Identifier: Apache-2.0
"""A real browser: headless Chromium, driven over a pipe (Chrome DevTools Protocol), no driver, no port."""

import base64
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.debian import ensure_packages
from tests.lab.process import LabError

PACKAGE = "chromium-headless-shell"
TIMEOUT_SECONDS = 60


@dataclass
class Browser:
    """One tab of a running browser."""

    commands: int
    answers: int
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    _number: int = 0
    _rest: bytes = b""

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; raises LabError when the browser refuses or says nothing."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise LabError(f"the browser refuses {method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait_for(self, event: str) -> None:
        """Wait until the browser has told of an event since the tab was told to do something."""
        while not any(one["method"] == event for one in self.events):
            self.events.append(self._read())

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT_SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self.answers, 1 << 16) if ready else b""
            if not part:
                raise LabError(f"the browser has not answered within {TIMEOUT_SECONDS} s, or has ended")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def open(self, page: Path, width: int, height: int, *, dark: bool = False) -> None:
        """Show a file in a window of that many CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait_for("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page (DevTools may run some where the page may not)."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise LabError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """Press a key and let it go."""
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        event = {"key": key, "code": {" ": "Space"}.get(key, key), "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def screenshot(self, path: Path, *, whole: bool = True, height: int = 0) -> None:
        """Write a picture of the page, all of it or its top, as PNG or WebP by the path's suffix."""
        metrics = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": metrics["width"], "height": height or metrics["height"], "scale": 1}
        kind = path.suffix.lstrip(".")
        quality = {"quality": 85} if kind == "webp" else {}
        answer = self.call(
            "Page.captureScreenshot", format=kind, captureBeyondViewport=whole, clip=clip, **quality
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def requests(self) -> list[str]:
        """What the page has asked for since it was opened."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Errors and warnings of the console since the page was opened, refused content among them."""
        return [
            json.dumps(event["params"])
            for event in self.events
            if event["method"] in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        ]


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium, which is installed where it is missing, with one empty tab; end it afterwards."""
    ensure_packages(PACKAGE)
    to_browser, commands = os.pipe()
    answers, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(prefix="jetson-k3s-browser-") as profile:
        # bash puts the pipes where --remote-debugging-pipe looks for them. No sandbox: tests run as root.
        script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        arguments = (
            "--remote-debugging-pipe",
            "--no-sandbox",
            f"--user-data-dir={profile}",
            "--hide-scrollbars",
        )
        process = subprocess.Popen(
            ["bash", "-c", script, PACKAGE, *arguments],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            tab = Browser(commands, answers)
            target = tab.call("Target.createTarget", url="about:blank")["targetId"]
            tab.session = tab.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Network", "Log", "Runtime"):
                tab.call(f"{domain}.enable")
            yield tab
        finally:
            with suppress(OSError, LabError):
                os.write(commands, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(commands)
            os.close(answers)
