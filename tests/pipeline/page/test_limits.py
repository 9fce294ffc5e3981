# SPDX-License-Identifier: Apache-2.0
"""Limited clients on the page."""

from __future__ import annotations

import re
from datetime import UTC
from pathlib import Path

import pytest

from tests.pipeline.page.past import Past, broker_minutes, limited, minutes
from tests.pipeline.parquet import START
from weir.pipeline.page.read import read_page
from weir.pipeline.page.write import page_of
from weir.pipeline.tables import BROKER_RATES, LIMITS

pytestmark = pytest.mark.long

EVIL = "<script>alert('t')</script>"


def cells(page: str) -> list[list[str]]:
    """The rows of the table of limited clients."""
    (section,) = re.findall(r'<section id="limits".*?</section>', page, re.DOTALL)
    (body,) = re.findall(r"<tbody>(.*?)</tbody>", section, re.DOTALL)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in body.split("</tr>")[:-1]]


def test_limited_clients_are_shown_by_how_long_they_waited(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (1, 1), (1, 1), (1, 1)))
    past.put(
        LIMITS,
        limited("little", 6000, waited=0.1),
        limited("connector-consumer-s3-0", 60_000, waited=0.9),
        limited("connector-consumer-s3-0", 30_000, START + minutes(1), waited=0.4, record_rate_limit=500.0),
        limited(EVIL, 60, START + minutes(2), connector=None, task=None, role="other", record_rate_limit=None),
        limited("least", 6000, waited=0.0),
        limited("outside", 1, START + minutes(-3)),
        limited("of hours", 1, window="hour"),
    )
    contents = read_page(past.write(), START, None, 3)
    assert contents.limited.count == 4
    page = page_of(contents, UTC)
    assert cells(page) == [
        ["connector-consumer-s3-0", "s3, sink 0", "1,000", "1,000", "1,200", "90,000", "1 min 18 s"],
        ["&lt;script&gt;alert('t')&lt;/script&gt;", "-", "-", "1", "1", "60", "30.0 s"],
        ["little", "s3, sink 0", "1,000", "100", "120", "6,000", "6.0 s"],
    ]
    assert "Shown are the 3 that waited longest of 4 limited clients; 1 are left out." in page


def test_page_without_limits_has_no_section_of_them(past: Past) -> None:
    past.put(BROKER_RATES, *broker_minutes(1, "leader", (1, 1)))
    folder = past.write()
    assert 'id="limits"' not in page_of(read_page(folder, None, None, 9), UTC)
    past.put(LIMITS, limited("mine", 1, START + minutes(30)))
    assert 'id="limits"' not in page_of(read_page(past.write(), START, START + minutes(1), 9), UTC)


def test_limited_clients_alone_make_a_page(tmp_path: Path) -> None:
    """A sidecar before clients only has no replication to tell of."""
    past = Past(tmp_path)
    past.put(LIMITS, limited("mine", 60), limited("mine", 60, START + minutes(4)))
    contents = read_page(past.write(), None, None, 9)
    assert contents.columns is not None
    assert (contents.columns.since, contents.columns.until) == (START, START + minutes(5))
    assert cells(page_of(contents, UTC))[0][5] == "120"
