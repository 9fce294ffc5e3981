# SPDX-License-Identifier: Apache-2.0
"""What a chaos run takes for the faults' own doing in logs, and what it does not."""

import time
from pathlib import Path

import pytest

from tests.chaos.checks import History, broker_complaints, leader_starts, reason_for, sidecar_complaints, stamp
from tests.chaos.checks import under_replicated as behind
from tests.chaos.faults import Fault, Kind
from tests.chaos.lanes import Happened
from tests.chaos.watch import Move, Reading, next_places, window_of
from weir.control.cluster_admin import Partition, PartitionState
from weir.lab.broker_log import LogLine

DAY = "2026-11-22 11:38"
NOON = time.mktime(time.strptime(f"{DAY}:00", "%Y-%m-%d %H:%M:%S"))
LEADER = (
    f"{DAY}:00.000 INFO state.change.logger - [Broker id=2] Leader orders-5 with topic id Some(CrCLNz4uQMikuTVT29X7YA) "
    "starts at leader epoch 13 from offset 351 with partition epoch 18, high watermark 350, ISR [2,1,3], adding "
    "replicas [] and removing replicas [] . Previous leader Some(1) and previous leader epoch was 12."
)
LOG = "[UnifiedLog partition=orders-5, dir=/data]"


def line(sign: str, text: str, second: int = 10, broker: int = 3) -> LogLine:
    return LogLine(sign, Path(f"broker-{broker}.log"), 1, f"{DAY}:{second:02}.000 INFO kafka - {text}")


def shrunk(partition: str, *gone: int) -> LogLine:
    out = " ".join(f"(brokerId: {broker_id}, endOffset: 7)" for broker_id in gone)
    return line("Shrinking ISR", f"[Partition {partition} broker=1] Shrinking ISR from 1,2,3 to 1. Out of sync: {out}")


def regressed(old: int, new: int) -> LogLine:
    text = (
        f"Non-monotonic update of high watermark from (offset={old}, segment=[0:24]) to (offset={new}, segment=[-1:-1])"
    )
    return line("Non-monotonic", f"{LOG} {text}")


def down(broker_id: int, begun: float = 0, ended: float = 5) -> History:
    fault = Fault(at=1, kind=Kind.KILL_BROKER, target=broker_id)
    return History([Happened(fault, NOON + begun, NOON + ended)])


def led() -> History:
    return History(starts=leader_starts([LEADER]))


def test_stamp_of_a_line_is_its_moment() -> None:
    assert stamp(LEADER) == NOON
    assert stamp("a line of a stack trace") is None


def test_isr_without_a_broker_that_was_down_is_no_complaint() -> None:
    """An ISR without another broker is one, and so is an ISR without this one long after it was down."""
    assert reason_for(shrunk("live-a-0", 2), down(2))
    assert reason_for(shrunk("live-a-0", 2, 3), down(2)) is None
    assert reason_for(shrunk("live-a-0", 3), down(2)) is None
    assert reason_for(shrunk("live-a-0", 2), down(2, begun=-300, ended=-200)) is None
    assert reason_for(shrunk("live-a-0", 2), History()) is None


def test_isr_without_a_replica_taken_away_is_no_complaint() -> None:
    """That holds for the moved topic alone, and for that replica alone."""
    history = History(moves=[Move({}, frozenset({2}), NOON - 5)])
    assert reason_for(shrunk("orders-0", 2), history)
    assert reason_for(shrunk("orders-0", 3), history) is None
    assert reason_for(shrunk("live-a-0", 2), history) is None


def test_log_cut_back_under_a_new_leader_is_no_complaint() -> None:
    """Nor is it one after the broker was down; below the high watermark it is one."""
    cut = line("Truncating", f"{LOG} Truncating to offset 351")
    assert reason_for(cut, led())
    assert reason_for(cut, down(3))
    assert reason_for(cut, down(2)) is None
    assert (
        reason_for(line("Truncating", "[UnifiedLog partition=orders-4, dir=/] Truncating to offset 3"), led()) is None
    )
    assert reason_for(line("Truncating", f"{LOG} Truncating to offset 3 below high watermark 4"), led()) is None


def test_high_watermark_may_go_back_if_new_leader_has_whole_log() -> None:
    """It is a complaint where something acknowledged is not in the new leader's log."""
    assert reason_for(regressed(351, 350), led())
    assert reason_for(regressed(352, 350), led()) is None  # what was acknowledged is not in the new leader's log
    assert reason_for(regressed(351, 349), led()) is None
    assert reason_for(regressed(351, 350), History()) is None


@pytest.mark.parametrize(
    "sign", ["invalid full fetch response", "marked as failed", "Offset mismatch", "Unexpected error"]
)
def test_other_signs_are_complaints_whatever_happened(sign: str) -> None:
    wrong, excused = broker_complaints([line(sign, f"{LOG} {sign}"), shrunk("live-a-0", 2)], down(2))
    assert len(wrong) == 1 and sign in wrong[0]
    assert excused.total() == 1


def test_sidecar_log_may_refuse_as_many_files_as_were_broken(tmp_path: Path) -> None:
    """It may warn as well; a refusal more is a complaint."""
    log = tmp_path / "sidecar-1.log"
    refused = 'time=2026-11-22T11:39:11Z level=error event=config_refused error="broken"\n'
    log.write_text(refused + "time=2026-11-22T11:39:11Z level=warning event=upstream_failed peer=a\n")
    wrong, warned = sidecar_complaints(1, log, refused=1)
    assert (wrong, dict(warned)) == ([], {"upstream_failed": 1})
    log.write_text(refused * 2)
    assert len(sidecar_complaints(1, log, refused=1)[0]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "time=2026-11-22T11:39:11Z level=error event=throttle_error side=leader",
        "time=2026-11-22T11:39:11Z level=warning event=protocol_error kind=fetch_memory",
        "Traceback (most recent call last):",
    ],
)
def test_sidecar_log_with_an_error_or_traceback_is_a_complaint(tmp_path: Path, text: str) -> None:
    log = tmp_path / "sidecar-1.log"
    log.write_text(text + "\n")
    assert len(sidecar_complaints(1, log, refused=5)[0]) == 1


def test_partitions_behind_lack_a_leader_or_replica_in_the_isr() -> None:
    states = {
        Partition("live-a", 0): PartitionState(1, (1, 2, 3), (3, 2, 1)),
        Partition("live-a", 1): PartitionState(1, (1, 2, 3), (1, 2)),
        Partition("live-a", 2): PartitionState(-1, (1, 2, 3), (1, 2, 3)),
    }
    assert [sentence.split()[0] for sentence in behind(states)] == ["live-a-1", "live-a-2"]


@pytest.mark.parametrize(("keep_leader", "expected"), [(False, (2, 3)), (True, (1, 3))])
def test_next_places_bring_in_the_third_broker(keep_leader: bool, expected: tuple[int, ...]) -> None:
    one = Partition("orders", 0)
    assert next_places({one: PartitionState(1, (1, 2), (1, 2))}, (1, 2, 3), keep_leader) == {one: expected}


def test_next_places_come_round_to_where_they_were() -> None:
    one, replicas, seen = Partition("orders", 0), (1, 2), []
    for _ in range(3):
        replicas = next_places({one: PartitionState(replicas[0], replicas, replicas)}, (1, 2, 3), False)[one]  # type: ignore[assignment] # two of them
        seen.append(replicas)
    assert seen == [(2, 3), (3, 1), (1, 2)]


def readings(seconds: int, rate: float, quota: float = 1e6) -> list[Reading]:
    return [Reading(second, second + 0.1, quota, second * rate) for second in range(seconds + 1)]


def test_window_of_a_throttle_that_stood_still_is_what_passed() -> None:
    """What went through in that time counts for all of it, and stays below what is allowed."""
    window = window_of(1, "leader", readings(10, 0.9e6))
    assert window is not None
    assert window.ratio == pytest.approx(0.89, abs=0.02)
    assert window.size < window.allowed


def test_window_above_its_quota_is_more_than_is_allowed() -> None:
    window = window_of(1, "leader", readings(10, 2.5e6))
    assert window is not None and window.size > window.allowed


def test_burst_after_a_long_quiet_time_is_above_what_is_allowed() -> None:
    """The quiet time gives a burst above the quota no credit."""
    quiet, burst = readings(20, 0.0), [Reading(21 + n, 21.1 + n, 1e6, 4e6 * (n + 1)) for n in range(4)]
    window = window_of(1, "leader", [*quiet, *burst])
    assert window is not None and window.size > window.allowed


def test_window_that_is_short_or_unthrottled_is_none() -> None:
    assert window_of(1, "leader", readings(2, 1e6)) is None
    assert window_of(1, "leader", readings(10, 1e6, float("inf"))) is None
    assert window_of(1, "leader", []) is None
