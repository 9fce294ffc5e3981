# SPDX-License-Identifier: Apache-2.0
"""What a sidecar tells of its own troubles, as sentences and as metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from weir.proxy.admin import troubles
from weir.proxy.admin.metrics import ProcessStats
from weir.proxy.admin.troubles import KINDS, Connections, connections_tracked, digest, is_full, trouble_families
from weir.proxy.config.client_limits import ClientLimitTable
from weir.proxy.config.load import parse_config
from weir.proxy.sidecar import Sidecar
from weir.quota.topic_names import TopicNames

FILE = 'broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:0"\nupstream = "127.0.0.1:1"\n'


def table(folder: Path, tracked: str, most: str) -> Path:
    (folder / "nf_conntrack_count").write_text(tracked)
    (folder / "nf_conntrack_max").write_text(most)
    return folder


@pytest.mark.parametrize(("tracked", "full"), [("89\n", False), ("90\n", True), ("100\n", True)])
def test_table_of_connections_is_full_from_nine_tenths_on(tmp_path: Path, tracked: str, full: bool) -> None:
    found = connections_tracked(table(tmp_path, tracked, "100\n"))
    assert found == Connections(int(tracked), 100)
    assert is_full(found) == full


def test_table_that_nobody_tells_of_is_not_full(tmp_path: Path) -> None:
    assert connections_tracked(tmp_path) is None
    assert not is_full(None)


def test_full_table_is_a_trouble_of_those_that_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(troubles, "connections_tracked", lambda: Connections(100, 100))
    process = ProcessStats("1", TopicNames(lambda: 0.0))
    assert troubles.troubles(process, captures=False) == {}
    (sentence,) = troubles.troubles(process, captures=True).values()
    assert sentence.startswith("the kernel tracks 100 connections of 100 at most")


def told(sidecar: Sidecar) -> dict[str, float]:
    families = trouble_families(sidecar.shown.troubles(), {"limits": "", "quotas": ""})
    return {labels[0]: value for labels, value in next(iter(families)).samples}


def test_refused_file_is_a_trouble_until_one_is_taken() -> None:
    sidecar = Sidecar(parse_config(FILE), "1")
    assert set(told(sidecar).values()) == {0}
    sidecar.reload_refused(ValueError("quota.x: is unknown"))
    assert sidecar.shown.troubles()["config_refused"].endswith("holds: quota.x: is unknown")
    assert told(sidecar) == dict.fromkeys(KINDS, 0) | {"config_refused": 1}
    sidecar.reload(parse_config(FILE))
    assert sidecar.shown.troubles() == {}


def test_digest_is_alike_for_settings_that_are_alike() -> None:
    one, same, other = (
        (ClientLimitTable(client_id="a", options={"byte.rate.limit": rate}),)
        for rate in (5_000_000, 5_000_000, 5_000_001)
    )
    assert digest(one) == digest(same) != digest(other)
