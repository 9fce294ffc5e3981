# SPDX-License-Identifier: Apache-2.0
"""A page of another origin in Chromium, with all that it may send unasked to a sidecar on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.browser import Browser
from tests.proxy.page.made_up import MadeUp, served
from weir.proxy.shares.exchange import ShareAnswer

PAGE = """<!doctype html><title>evil</title><iframe name="out"></iframe><script>
const target = %s, lease = '{"lease": {"seconds": 86400, "owner": "root"}}';
const forms = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"];
const types = [...forms, "", "application/json"];
const wait = [];
for (const path of ["v1/capture/pause", "v1/capture/resume", "v1/shares"]) {
  for (const type of types) {
    const body = type ? lease : new Blob([lease]), headers = type ? {"Content-Type": type} : {};
    wait.push(fetch(target + path, {method: "POST", mode: "no-cors", headers, body}));
    wait.push(fetch(target + path, {method: "POST", headers, body}));
    navigator.sendBeacon(target + path, new Blob([lease], {type: type}));
  }
  for (const enctype of forms) {
    const form = document.createElement("form");
    Object.assign(form, {method: "POST", action: target + path, enctype, target: "out"});
    form.innerHTML = '<input name=\\'{"lease": {"seconds": 86400, "owner": "\\' value=\\'"}}\\'>';
    document.body ? document.body.append(form) : document.documentElement.append(form);
    form.submit();
  }
}
for (const method of ["PUT", "PATCH", "DELETE"])
  for (const path of ["v1/throttle", "v1/limits"])
    wait.push(fetch(target + path, {method, headers: {"Content-Type": "application/json"}, body: "{}"}));
let sent = "";
Promise.allSettled(wait).then((all) => { sent = all.map((one) => one.status).join(" "); });
</script>"""


class Noting(MadeUp):
    """Notes what would change it."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[object] = []

    def pause_capture(self, asked: object | None) -> dict[str, Any]:
        self.changes.append(asked)
        return super().pause_capture(asked)

    def answer_about_shares(self, body: bytes) -> ShareAnswer:
        self.changes.append(body)
        return super().answer_about_shares(body)


@contextmanager
def foreign_page(target: str) -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write((PAGE % json.dumps(target)).encode())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_page_of_another_origin_changes_nothing(browser: Browser, caplog: pytest.LogCaptureFixture) -> None:
    sidecar = Noting()
    with served(sidecar) as url, foreign_page(url) as page:
        before = sidecar.throttle.effective
        browser.open(page)
        browser.wait_for("sent !== ''")
        assert "fulfilled" in browser.evaluate("sent")  # an opaque answer: some were sent
        browser.open("about:blank")
    assert (sidecar.changes, sidecar.throttle.effective) == ([], before)
    refused = [record.__dict__["weir_fields"]["reason"] for record in caplog.records if record.msg == "admin_refused"]
    assert refused == ["origin"]
