# SPDX-License-Identifier: Apache-2.0
import pytest

from weir.lab.errors import LabError
from weir.lab.produce import LiveRecord, latency


def test_latency_is_that_of_the_record_at_the_quantile() -> None:
    records = [LiveRecord(number, (number * 37 % 100) / 1000) for number in range(100)]
    assert [latency(records, quantile) for quantile in (0, 0.5, 0.99, 1)] == [0.0, 0.05, 0.099, 0.099]


def test_latency_without_a_record_is_an_error() -> None:
    with pytest.raises(LabError, match="No live record"):
        latency([], 0.5)
