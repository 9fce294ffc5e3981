# SPDX-License-Identifier: Apache-2.0
"""`weir plan --bootstrap-server`: what a cluster in memory tells, and what goes before it."""

import json
import shlex

import pytest

from tests.cli.commands import failing
from tests.fakes.move_cluster import FakeCluster
from weir.cli.main import main
from weir.cli.sidecars import Reply
from weir.planning.assignment import Partition
from weir.proxy.config.address import Address

MB = 1_000_000
PLAN = ("plan", "--bootstrap-server", "kafka1:9092", "--json")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Broker 1 has three partitions of 100 MB, 2 and 3 have two; each grows by 5 MB while it is watched."""
    held = {0: (1, 2), 1: (1, 3), 2: (1, 2, 3)}
    fake = FakeCluster({Partition("orders", number): brokers for number, brokers in held.items()}, size=100 * MB)
    fake.stand_in(monkeypatch)
    fake.grown_per_look = 5 * MB
    fake.size -= fake.grown_per_look
    return fake


def figures(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, tuple[object, str]]:
    assert main([*PLAN, *words]) == 0
    found = json.loads(capsys.readouterr().out)["figures"]
    return {name: (figure["value"], figure["source"]) for name, figure in found.items()}


def test_cluster_tells_what_no_option_gives(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, "--partitions-to-move", "1", "--quota", "50MB")
    assert found["brokers"] == (3, "cluster: brokers that are up")
    assert found["replication_factor"] == (2, "cluster: that of most partitions")
    assert found["move_ratio"] == (1 / 3, "computed: --partitions-to-move 1 / 3 in the cluster (KIP-73, Script)")
    mean = (300 + 200 + 200) * MB / 3
    assert found["log_size_per_broker"] == (
        pytest.approx(mean),
        "cluster: log sizes (DescribeLogDirs), the mean of all brokers",
    )
    # Three partitions grow by 1 MB/s each, and broker 1 has a replica of all.
    assert found["bytes_in"] == (
        pytest.approx(3 * MB),
        "cluster: broker 1, by the growth of its logs just now (DescribeLogDirs)",
    )


def test_one_broker_has_its_own_size_and_bytes_in(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, "--broker", "2", "--quota", "50MB")
    assert found["log_size_per_broker"] == (200 * MB, "cluster: log sizes (DescribeLogDirs)")
    assert found["bytes_in"][0] == pytest.approx(2 * MB)


def test_options_go_before_the_cluster(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "--size 1GB --in 7MB --brokers 9 --replication 4 --move-ratio 0.5 --quota 50MB"
    found = figures(capsys, *shlex.split(asked))
    assert [found[name][0] for name in ("log_size_per_broker", "bytes_in", "brokers", "replication_factor")] == [
        1000 * MB,
        7 * MB,
        9,
        4,
    ]


def test_broker_that_is_not_there_is_refused(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    status, sentence = failing(capsys, *PLAN, "--broker", "9")
    assert (status, sentence) == (1, "--broker: there is no broker 9 in the cluster, or it is down.")


def told_by(monkeypatch: pytest.MonkeyPatch, *asked: dict[int, dict[str, int]]) -> None:
    """What sidecars answer to one question after another: by broker and side, bytes that are not throttled."""
    answers = iter(asked)

    def ask(addresses: object, method: str, path: str) -> list[Reply]:
        replies = []
        for broker, sides in next(answers).items():
            replication = {
                side: {"replication": [{"throttled": False, "bytes": size}, {"throttled": True, "bytes": 9**9 * size}]}
                for side, size in sides.items()
            }
            replies.append(Reply(Address("h", 1), {"broker_id": broker, "sides": replication}))
        return [*replies, Reply(Address("h", 2), error="no answer")]

    monkeypatch.setattr("weir.cli.move_sidecars.ask_all", ask)


@pytest.mark.parametrize(
    ("before", "after", "rate"),
    [
        ({"leader": 1, "follower": 7}, {"leader": 1 + 10 * MB, "follower": 7 + 15 * MB}, 5 * MB),
        ({"leader": 1}, {"leader": 1 + 20 * MB}, 8 * MB),
        ({"follower": 7}, {"follower": 7 + 25 * MB}, 10 * MB),
    ],
)
def test_sidecar_tells_bytes_in_where_they_exceed_the_logs(
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    before: dict[str, int],
    after: dict[str, int],
    rate: float,
) -> None:
    """With two replicas of each partition; the logs of broker 2 grow by 2 MB/s."""
    told_by(monkeypatch, {2: before}, {2: after})
    found = figures(capsys, "--broker", "2", "--quota", "50MB", "--admin", "h:1", "--admin", "h:2")
    source = "sidecar of broker 2: replication just now, throttled replicas aside (/v1/status)"
    assert found["bytes_in"] == (pytest.approx(rate), source)


def test_logs_tell_bytes_in_where_no_sidecar_does(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told_by(monkeypatch, {1: {"follower": 5}}, {})
    found = figures(capsys, "--broker", "2", "--quota", "50MB", "--admin", "h:1")
    assert found["bytes_in"][1] == "cluster: broker 2, by the growth of its logs just now (DescribeLogDirs)"


def test_sidecars_alone_are_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    status, sentence = failing(capsys, "plan", "--admin", "h:1")
    assert status == 2
    assert sentence.startswith("--admin needs --bootstrap-server")
