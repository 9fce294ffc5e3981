# SPDX-License-Identifier: Apache-2.0
"""Samples of a throttled move, in files and in a topic: after a clean stop they tell every byte of the move."""

import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.moves import BATCH_BYTES, MB, assert_identical, assert_throttled, filled, moving, throttle
from tests.integration.reports import build, partition_bytes
from tests.sample_files import lines_in, lines_of, of_kind
from weir.lab.cluster import Cluster
from weir.lab.modes import NEWEST
from weir.lab.produce import read_records
from weir.samples.schema import AnyLine, LinkLine, PartitionLine, QuotaLine

pytestmark = pytest.mark.integration

LEADER, FOLLOWER = 1, 2
RATE = 4 * MB
SAMPLES = "weir-samples"


def export_to(cluster: Cluster, directory: Path) -> None:
    """Have both sidecars export: their ports, and with them the topic, are known only now."""
    servers = ",".join(cluster.bootstrap_servers)
    tables = (
        f'\n[export]\ninterval_seconds = 1\ndirectory = "{directory}"\n'
        f'[export.kafka]\nbootstrap_servers = "{servers}"\ntopic = "{SAMPLES}"\n'
    )
    for broker_id, sidecar in cluster.sidecars.items():
        sidecar.config.write_text(sidecar.config.read_text() + tables)
        assert sidecar.stop() == 0
        cluster.start_sidecar(broker_id)


def test_samples_of_a_move_have_every_byte_of_the_segments(tmp_path: Path) -> None:
    with NEWEST.cluster(brokers=2, sidecars=True) as cluster:
        cluster.create_topic(SAMPLES, {0: [LEADER]})
        topic = filled(cluster, "orders", [LEADER], 16 * MB)
        export_to(cluster, tmp_path / "files")
        cluster.sidecars[LEADER].put_throttle(throttle(topic, leader=RATE))
        cluster.sidecars[FOLLOWER].put_throttle(throttle(topic, follower=RATE))
        with moving(cluster, [topic], [LEADER, FOLLOWER]) as received:
            pass
        moved = assert_identical(cluster, [topic], LEADER, FOLLOWER)
        for broker_id, side in ((LEADER, "leader"), (FOLLOWER, "follower")):
            assert_throttled(cluster, broker_id, side)
            assert cluster.sidecars[broker_id].metrics().value("weir_samples_dropped_total") == 0
        cluster.check_logs()
        for sidecar in cluster.sidecars.values():
            sidecar.send(signal.SIGTERM)
            assert sidecar.wait(30) == 0
        records = read_records(cluster.bootstrap_servers, SAMPLES, [0])
        days = sorted(
            {folder.name.removeprefix("date=") for folder in (tmp_path / "files").iterdir() if folder.is_dir()}
        )
        from_topic = built(f"kafka://{','.join(cluster.bootstrap_servers)}/{SAMPLES}", tmp_path / "of-topic", days)
    assert from_topic == built(str(tmp_path / "files"), tmp_path / "of-files", days)
    in_files, in_topic = lines_in(tmp_path / "files"), lines_of(record.value for record in records if record.value)
    assert Counter(in_files) == Counter(in_topic)
    assert received.series().received == moved
    for broker_id, peer, side in ((LEADER, FOLLOWER, "leader"), (FOLLOWER, LEADER, "follower")):
        assert_told(in_files, broker_id, peer, side, topic, moved)


def built(source: str, tables: Path, days: Sequence[str]) -> list[tuple[object, ...]]:
    """Build tables, and return the bytes of partitions."""
    done = build(source, tables, days[0], days[-1])
    assert done.returncode == 0, done.stderr
    return partition_bytes(tables)


def assert_told(lines: Sequence[AnyLine], broker_id: int, peer: int, side: str, topic: str, moved: int) -> None:
    """One side of the move of `moved` bytes, as its partitions, its link and its quota tell it."""
    own = [line for line in lines if line.broker_id == broker_id]
    assert len({line.start_id for line in own}) == 1
    partitions = [line for line in of_kind(own, PartitionLine) if (line.side, line.topic) == (side, topic)]
    assert {(line.peer, line.partition) for line in partitions} == {(peer, partition) for partition in range(5)}
    assert sum(line.bytes_complete for line in partitions) == moved
    assert sum(line.bytes_unthrottled for line in partitions) == 0
    assert partitions[-1].lag_messages == 0
    throttled = sum(line.bytes_throttled for line in partitions)
    links = [line for line in of_kind(own, LinkLine) if line.side == side]
    assert sum(line.bytes_throttled for line in links) == throttled
    seconds: Counter[int] = Counter()
    for quota in of_kind(own, QuotaLine):
        assert (quota.side, quota.rate) == (side, RATE)
        seconds.update(dict(enumerate(quota.bytes_by_second, quota.first_second)))
    assert seconds.total() == throttled
    assert max(seconds.values()) <= 1.05 * RATE + BATCH_BYTES
