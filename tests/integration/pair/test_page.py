# SPDX-License-Identifier: Apache-2.0
"""The page of the admin server in Chromium while real brokers move data; skipped without Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import Browser
from tests.integration.moves import LONG, MB, filled, moving, throttle, wait_for_bytes
from weir.lab.cluster import Cluster

pytestmark = pytest.mark.integration

DESK, PHONE = 1280, 360
RATE = "document.querySelector('#leader .rate').textContent"


def test_page_follows_a_move(pair: Cluster, browser: Browser, tmp_path: Path) -> None:
    """Rates against the quota, what is behind and its time left, who holds it up, the throttle's layers, and the fleet.

    The samples before the page was opened are there, too.
    """
    sidecar = pair.sidecars[1]
    topic = filled(pair, "orders", [1], 150 * MB, batch_bytes=LONG)
    lease = {"seconds": 3600, "owner": "ann", "reason": "broker 2 is new"}
    sidecar.put_throttle({**throttle(topic, leader=2 * MB), "lease": lease})
    with moving(pair, [topic], [1, 2], seconds=120) as received:
        wait_for_bytes(pair, received, 8 * MB)
        for width, touch in ((DESK, False), (PHONE, True)):
            for scheme in ("light", "dark"):
                browser.look(width, 740 if touch else 900, scheme=scheme, touch=touch)
                browser.open(f"http://{sidecar.admin_address}/")
                browser.wait_for("document.querySelectorAll('#fleet tbody tr').length === 4")
                browser.wait_for(f"/^(1\\.[5-9]|2\\.[01]).* MB/.test({RATE})")
                assert browser.evaluate("document.documentElement.scrollWidth") == width
                (tmp_path / f"{width}-{scheme}.png").write_bytes(browser.picture())
                assert browser.complaints == []
        text = browser.evaluate("document.body.innerText")
        assert "The quota holds 5 partitions of broker 2 back: " in text
        assert "http, 1 h left" in text or "http, 59 min" in text
        assert "ann: broker 2 is new" in text
        assert f"{topic}-" in text
        assert "2 of 2 sidecars answer. 5 partitions behind." in text
        drawn = browser.evaluate(
            "document.querySelector('#leader .edge.throttled').getAttribute('d').split('L').length"
        )
        assert drawn > 8  # from before the page was opened
        browser.wait_for("/min|\\d s/.test(document.querySelector('#leader .left').textContent)")
        sidecar.delete_throttle()
    browser.wait_for("document.querySelector('#leader .verdict').textContent === 'Nothing is behind.'")
    assert browser.complaints == []
    pair.check_logs()
