# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium, driven by the DevTools protocol over a pipe: it has no port, and ends when the pipe closes."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ANSWER_SECONDS: Final = 60.0

# Every text that is shown, with the contrast (WCAG 2) between it and the nearest ground behind it.
_CONTRASTS = """
(() => {
  const parts = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = (colour) => parts(colour).slice(0, 3)
    .map((part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return getComputedStyle(at).backgroundColor;
    }
  };
  return [...document.body.querySelectorAll("*")]
    .filter((element) => !["SCRIPT", "title"].includes(element.tagName))
    .filter((element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .map((element) => {
      const style = getComputedStyle(element);
      const text = light(element instanceof SVGElement ? style.fill : style.color), behind = light(ground(element));
      const contrast = (Math.max(text, behind) + 0.05) / (Math.min(text, behind) + 0.05);
      return [contrast, element.textContent.slice(0, 40)];
    });
})()
"""


class Browser:
    """One page, with all that it asked the network for (`requests`) and complained of (`complaints`)."""

    def __init__(self, chromium: str, profile: Path) -> None:
        (commands_out, self._commands), (self._answers, answers_in) = os.pipe(), os.pipe()
        # High numbers: the shell puts them on 3 and 4, where Chromium looks for them.
        for_child = [fcntl.fcntl(fd, fcntl.F_DUPFD, 50) for fd in (commands_out, answers_in)]
        shell = f'exec "$@" 3<&{for_child[0]} 4>&{for_child[1]}'
        options = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--no-startup-window",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
        )
        self._process = subprocess.Popen(
            ("bash", "-c", shell, "bash", chromium, *options, "--remote-debugging-pipe"),
            pass_fds=for_child,
            # It leaves files in all of these.
            env={**os.environ, **dict.fromkeys(("HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), str(profile))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (commands_out, answers_in, *for_child):
            os.close(fd)
        self._received = b""
        self._sent = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self._send("Target.createTarget", url="about:blank")
        attached = self._send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._send(f"{domain}.enable")

    def close(self) -> None:
        os.close(self._commands)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)

    def look(self, width: int, height: int = 900, *, scheme: str = "light", touch: bool = False) -> None:
        """Be a screen of so many pixels, in a light or dark scheme."""
        self._send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self._send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, page: Path | str) -> None:
        """Open a file or a URL, and wait until it is loaded."""
        self.requests.clear()
        self.complaints.clear()
        self._loaded = False
        self._send("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not self._loaded:
            self._take(self._receive())

    def evaluate(self, script: str) -> Any:
        """Return what a script's last expression is, as JSON tells it."""
        answer = self._send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def contrasts(self) -> list[tuple[float, str]]:
        """Return every text that is shown, with its contrast (WCAG 2)."""
        return [(contrast, text) for contrast, text in self.evaluate(_CONTRASTS)]

    def wait_for(self, condition: str | Callable[[], bool], seconds: float = 20) -> None:
        """Wait until a script's last expression, or what a function returns, is true."""
        end = time.monotonic() + seconds
        while not (self.evaluate(condition) if isinstance(condition, str) else condition()):
            assert time.monotonic() < end, f"not within {seconds:g} s: {condition}"
            time.sleep(0.1)

    def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            self._send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code[key], **text)

    def point(self, x: float, y: float) -> None:
        self._send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, *, whole: bool = True) -> bytes:
        """A PNG of the screen, or of the whole page."""
        answer = self._send("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        return base64.b64decode(answer["data"])

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self._send("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def _send(self, method: str, **params: Any) -> Any:
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._sent:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._take(answer)

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + ANSWER_SECONDS
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"Chromium said nothing for {ANSWER_SECONDS} s"
            piece = os.read(self._answers, 1 << 20)
            assert piece, "Chromium is gone"
            self._received += piece
        message, _, self._received = self._received.partition(b"\0")
        found = json.loads(message)
        assert isinstance(found, dict)
        return found

    def _take(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(params))
