# SPDX-License-Identifier: Apache-2.0
"""`weir plan --history`: what is taken from the tables, and what is not."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.cli.commands import failing
from tests.cli.plans import ASK, MB, answer, values
from tests.pipeline.page.past import Past, behind_minute, move
from tests.pipeline.parquet import HOUR, MINUTE, START, broker_rate, hours, throttle, write_rates, write_throttles
from weir.pipeline.tables import BEHIND_MINUTES, BROKER_RATES, MOVES

pytestmark = pytest.mark.usefixtures("late_evening")


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Two days of brokers 2 and 3, the second day half as busy again; a throttle of each broker."""
    write_rates(tmp_path, [*hours(2, *[10 * MB] * 24, *[15 * MB] * 24), *hours(3, *[20 * MB] * 24, *[30 * MB] * 24)])
    write_throttles(
        tmp_path,
        [
            throttle(0.8, 1.25, end=START + 40 * HOUR, broker_id=2),
            throttle(0.9, 1.1, end=START + 40 * HOUR, broker_id=3),
        ],
    )
    return tmp_path


def test_history_answers_which_quota_moves_a_broker_in_time(capsys: pytest.CaptureFixture[str], history: Path) -> None:
    """Broker 3: 30 MB/s in its busiest hour, grown by a half: IN is 45. A day of 30 MB/s is its log."""
    found = answer(capsys, f"plan --broker 3 --history {history} --retention 1d --network 10Gb/s --by 06:00")
    to_move = 30 * MB * 86_400
    throttles = "1 strict throttle in 1 min (throttle_accuracy)"
    assert {name: (figure["value"], figure["source"]) for name, figure in found["figures"].items()} == {
        "replication_factor": (3, "default"),
        "history_from": ("2026-11-02 00:00:00+00:00", f"{history}, --last 28d"),
        "history_until": ("2026-11-04 00:00:00+00:00", str(history)),
        "brokers": (2, "history: broker ids in broker_rates"),
        "log_size_per_broker": (
            pytest.approx(to_move),
            "history: mean bytes in of a broker during --retention (broker_rates)",
        ),
        "bytes_to_move": (pytest.approx(to_move), "computed: the whole log of --broker 3"),
        "throttled_share": (
            0,
            "history: bytes of throttled replicas / all bytes (broker_rates); not counted as bytes in",
        ),
        "busiest_hour": (pytest.approx(30 * MB), "history: broker 3 at 2026-11-03 00:00 UTC (broker_rates)"),
        "busiest_by_night": (
            pytest.approx(30 * MB),
            "history: 22 to 6 UTC, broker 3 (broker_rates); give it as --in for a move by night",
        ),
        "growth": (pytest.approx(1.5), "history: mean bytes in, day on day, of brokers with both (broker_rates)"),
        "bytes_in": (
            pytest.approx(45 * MB),
            "computed: busiest hour x growth where it is above 1, for max(BytesInPerSec)",
        ),
        "network": (1250 * MB, "--network 10Gb/s"),
        "delivered": (0.9, f"history: mean / quota while partitions were left out, {throttles}"),
        "worst_second": (1.1, f"history: worst second / quota, at least 1, {throttles}"),
        "quota_above": (pytest.approx(50 * MB), "computed: bytes in < quota x delivered (KIP-73, Q&A 4)"),
        "quota_below": (
            pytest.approx((1250 - 15) * MB / 1.1),
            "computed: quota x worst second < network - bytes in / replication factor (KIP-73, Q&A 4)",
        ),
        "deadline": ("2026-11-22 06:00+01:00", "--by 06:00"),
        "time_allowed": (28_800, "computed: deadline - now, 22:00:00"),
        "quota": (
            pytest.approx((to_move / 28_800 + 45 * MB) / 0.9, abs=1),
            "computed: (bytes to move / time allowed + bytes in) / delivered (KIP-73, Q&A 1)",
        ),
        "move_time": (
            pytest.approx(28_800, abs=1),
            "computed: bytes to move / (quota x delivered - bytes in) (KIP-73, Q&A 1)",
        ),
        "done_at": ("2026-11-22 06:00+01:00", "computed: now + move time"),
        "response_max_bytes": (10_485_760, "Kafka's default"),
        "quota_window": (11, "computed: 11 (Kafka's default) x 1 s (Kafka's default)"),
        "response_max_bytes_below": (
            pytest.approx(11 * (to_move / 28_800 + 45 * MB) / 0.9, abs=11),
            "computed: window x min(quota x brokers, network) / brokers (KIP-73, Q&A 5)",
        ),
    }


def test_history_without_a_broker_takes_busiest_and_mean_log(capsys: pytest.CaptureFixture[str], history: Path) -> None:
    """Bytes in are those of the busiest broker, and the log is the mean of all."""
    found = values(answer(capsys, f"plan --move-ratio 0.5 --history {history} --retention 1d --quota 200MB"))
    assert found["log_size_per_broker"] == pytest.approx(22.5 * MB * 86_400)
    assert found["bytes_to_move"] == pytest.approx(22.5 * MB * 86_400)
    assert found["bytes_in"] == pytest.approx(45 * MB)
    assert (found["delivered"], found["worst_second"]) == (pytest.approx(0.85), 1.25)


def test_flags_go_before_the_history(capsys: pytest.CaptureFixture[str], history: Path) -> None:
    found = answer(capsys, f"{ASK} --history {history} --retention 1d --quota 50MB")
    for name, flag in (("brokers", "--brokers"), ("log_size_per_broker", "--size"), ("bytes_in", "--in")):
        assert found["figures"][name]["source"] == flag
    assert values(found)["delivered"] == pytest.approx(0.85)


def test_shrinking_traffic_is_not_counted_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Nor does a throttle deliver more than its quota, or have a worst second below it."""
    write_rates(tmp_path, hours(1, *[20 * MB] * 24, *[10 * MB] * 24))
    write_throttles(tmp_path, [throttle(1.1, 0.9, end=START + 40 * HOUR)])
    found = values(answer(capsys, f"plan --broker 1 --size 1TB --history {tmp_path} --quota 50MB"))
    assert found["growth"] == pytest.approx(0.5)
    assert found["bytes_in"] == pytest.approx(20 * MB)
    assert (found["delivered"], found["worst_second"]) == (1, 1)


def test_what_a_short_history_does_not_tell_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_rates(tmp_path, hours(1, 10 * MB))
    found = answer(capsys, f"plan --broker 1 --size 1TB --history {tmp_path} --quota 50MB --policy kip73")
    assert found["figures"]["growth"] == {
        "value": None,
        "unit": "ratio",
        "source": "history: no broker with two whole days in a row (broker_rates)",
    }
    assert found["figures"]["delivered"] == {
        "value": 1,
        "unit": "ratio",
        "source": "default: the history has no throttle of policy kip73 that left anything out",
    }


def test_what_open_moves_have_left_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One of two moves is open: each minute 1,000 messages fewer, and 121,000 left after two hours."""
    past = Past(tmp_path)
    past.put(BROKER_RATES, *hours(1, 10 * MB, 10 * MB))
    still = move(0, START, None)
    past.put(MOVES, still, move(1, START, START + HOUR))
    for number in range(120):
        behind = {"max_lag_messages": 240_000 - 1000 * number}
        past.put(BEHIND_MINUTES, {**behind_minute(still, START + number * MINUTE), **behind})
    ask = f"plan --broker 1 --size 1TB --history {past.write()} --quota 50MB"
    figures = answer(capsys, ask)["figures"]
    told = {name: figures[name]["value"] for name in figures if name.startswith("open_moves")}
    assert told == {
        "open_moves": 1,
        "open_moves_behind": 121_000,
        "open_moves_end": "2026-11-02 04:00+00:00",
    }


def test_history_of_throttled_replicas_alone_asks_for_bytes_in(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_rates(tmp_path, [broker_rate(1, "follower", 10 * MB, throttled=True)])
    status, error = failing(capsys, *shlex.split(f"plan --broker 1 --size 1TB --history {tmp_path} --quota 50MB"))
    assert status == 1
    assert error.endswith("says nothing of bytes in: give --in.")


def test_history_that_cannot_be_read_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = shlex.split(f"plan --broker 1 --size 1TB --history {tmp_path} --quota 50MB")
    status, error = failing(capsys, *ask)
    assert status == 1
    assert error == f"--history: {tmp_path} has no table broker_rates: no broker_rates/*.parquet."
    monkeypatch.setitem(sys.modules, "duckdb", None)
    status, error = failing(capsys, *ask)
    assert status == 1
    assert error == "--history: reading tables needs DuckDB: pip install 'kafka-weir[history]'."
