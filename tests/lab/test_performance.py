# SPDX-License-Identifier: Apache-2.0
import pytest

from weir.lab.errors import LabError
from weir.lab.performance import Consumed, parse_consumed

CONSUMED = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
    "2026-01-01 00:00:00.500 INFO org.apache.kafka.common.utils.AppInfoParser - App info unregistered\n"
    "2026-01-01 00:00:00:272, 2026-01-01 00:00:01:017, 22.4237, 30.0989, 5458, 7326.1745, 408, 337, 66.5392, 16195.8\n"
)


def test_consumed_figures_stand_below_heading_and_log_lines() -> None:
    assert parse_consumed(CONSUMED) == Consumed(5458, 66.5392)


def test_consumer_without_figures_is_an_error() -> None:
    with pytest.raises(LabError, match="no figures"):
        parse_consumed(CONSUMED.splitlines()[0])
