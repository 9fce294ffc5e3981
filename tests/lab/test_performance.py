import pytest

from weir.lab.errors import LabError
from weir.lab.performance import Consumed, Produced, parse_consumed, parse_produced

PRODUCED = (
    "3000 records sent, 600.0 records/sec (0.57 MB/sec), 5.0 ms avg latency, 9.0 ms max latency.\n"
    "5000 records sent, 6720.4 records/sec (6.41 MB/sec), 278.36 ms avg latency, 541.00 ms max latency, "
    "285 ms 50th, 330 ms 95th, 331 ms 99th, 332 ms 99.9th.\n"
)
CONSUMED = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
    "2026-01-01 00:00:00.500 INFO org.apache.kafka.common.utils.AppInfoParser - App info unregistered\n"
    "2026-01-01 00:00:00:272, 2026-01-01 00:00:01:017, 22.4237, 30.0989, 5458, 7326.1745, 408, 337, 66.5392, 16195.8\n"
)


def test_produced_figures_are_those_of_the_closing_line() -> None:
    assert parse_produced(PRODUCED) == Produced(5000, 6720.4, 6.41, 278.36, 541.0, 285.0, 330.0, 331.0, 332.0)


def test_producer_without_a_closing_line_is_an_error() -> None:
    with pytest.raises(LabError, match="no closing line"):
        parse_produced(PRODUCED.splitlines()[0])


def test_consumed_figures_stand_under_the_heading_with_log_lines_between() -> None:
    assert parse_consumed(CONSUMED) == Consumed(22.4237, 30.0989, 5458, 66.5392)


def test_consumer_without_figures_is_an_error() -> None:
    with pytest.raises(LabError, match="no figures"):
        parse_consumed(CONSUMED.splitlines()[0])
