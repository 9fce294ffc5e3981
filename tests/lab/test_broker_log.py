# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from weir.lab.broker_log import bad_signs, errors

LINES = {
    "invalid full fetch response": "Node 1 sent an invalid full fetch response with omittedPartitions=(orders-1)",
    "Non-monotonic": "WARN kafka.log.UnifiedLog - Non-monotonic update of high watermark from (offset=9) to (offset=3)",
    "marked as failed": "WARN kafka.server.ReplicaFetcherThread - Partition orders-0 marked as failed",
    "Offset mismatch": "Offset mismatch for partition orders-0: fetched offset = 5, log end offset = 4.",
    "Shrinking ISR": "INFO kafka.cluster.Partition - [Partition orders-0 broker=1] Shrinking ISR from 1,2 to 1.",
    "Unexpected error": "ERROR Unexpected error occurred while processing data for partition orders-0 at offset 5",
    "Truncating": "WARN kafka.server.ReplicaFetcherThread - Truncating orders-0 to offset 3 below high watermark 9",
}
HARMLESS = (
    "INFO kafka.server.ReplicaFetcherThread - Truncating partition orders-5 with TruncationState(offset=0) due to local"
    " high watermark 0",
    "INFO kafka.log.UnifiedLog - Truncating to 0 has no effect as the largest offset in the log is -1",
    "INFO kafka.cluster.Partition - [Partition orders-0 broker=1] ISR updated to 1,2",
)


def log_of(tmp_path: Path, *lines: str) -> Path:
    log = tmp_path / "broker-1.log"
    log.write_text("".join(f"2026-01-01 00:00:00.000 {line}\n" for line in lines))
    return log


@pytest.mark.parametrize("sign", LINES)
def test_bad_sign_is_found_with_its_line_and_number(tmp_path: Path, sign: str) -> None:
    log = log_of(tmp_path, HARMLESS[0], LINES[sign])
    found = bad_signs(log)
    assert [(line.sign, line.number) for line in found] == [(sign, 2)]
    assert str(found[0]).startswith(f"{log}:2: [{sign}] ")


@pytest.mark.parametrize("sign", LINES)
def test_bad_sign_that_the_test_provokes_is_allowed(tmp_path: Path, sign: str) -> None:
    assert bad_signs(log_of(tmp_path, LINES[sign]), allow={sign}) == []


def test_real_truncation_by_the_log_is_a_bad_sign(tmp_path: Path) -> None:
    log = log_of(tmp_path, "INFO kafka.log.UnifiedLog - [UnifiedLog partition=orders-0] Truncating to offset 3")
    assert [line.sign for line in bad_signs(log)] == ["Truncating"]


def test_new_follower_is_harmless(tmp_path: Path) -> None:
    assert bad_signs(log_of(tmp_path, *HARMLESS)) == []


def test_partition_awaiting_a_new_leader_epoch_is_harmless_once(tmp_path: Path) -> None:
    older = "INFO Partition {} has an older epoch (1) than the current leader. Will await the new LeaderAndIsr state"
    failed = "WARN kafka.server.ReplicaFetcherThread - Partition {} marked as failed"
    lines = [text.format(name) for text, name in ((older, "a-0"), (failed, "b-0"), (failed, "a-0"), (failed, "a-0"))]
    assert [line.number for line in bad_signs(log_of(tmp_path, *lines))] == [2, 4]


def test_allowing_an_unknown_sign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Shrinking isr: no such sign"):
        bad_signs(log_of(tmp_path), allow={"Shrinking isr"})


def test_errors_are_those_of_the_level_not_of_the_text(tmp_path: Path) -> None:
    log = log_of(tmp_path, "ERROR kafka.Kafka - gone", "INFO kafka.Kafka - no ERROR here", "FATAL kafka.Kafka - over")
    assert [line.number for line in errors(log)] == [1, 3]


def test_log_that_is_not_there_has_no_signs(tmp_path: Path) -> None:
    assert bad_signs(tmp_path / "none.log") == []
