# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import (
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    NodeNotReadyError,
    NotControllerError,
    TopicAlreadyExistsError,
    UnknownBrokerIdError,
    UnknownTopicOrPartitionError,
)

from weir.control import cluster_admin
from weir.control.cluster_admin import Partition, PartitionState, Reassignment, ThrottleSetting
from weir.control.errors import ControlError
from weir.lab.admin import LabAdmin

UNSET = {"leader.replication.throttled.replicas": {"value": ""}}


class FakeClient:
    """Stands in for KafkaAdminClient: returns what a test puts into it, and remembers what it was asked."""

    def __init__(self, **config: Any) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.asked.append((name, args, kwargs))
            answer = self.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer(*args) if callable(answer) else answer

        return call


def fail_clients(
    admin: LabAdmin, monkeypatch: pytest.MonkeyPatch, name: str, errors: list[Exception], then: Any
) -> list[FakeClient]:
    """Let the present client and those that follow fail with one error each, then answer. Returns those that follow."""
    answers = iter([*errors, then])
    made: list[FakeClient] = []
    client(admin).answers[name] = next(answers)

    def make(**config: Any) -> FakeClient:
        made.append(FakeClient())
        made[-1].answers[name] = next(answers)
        return made[-1]

    monkeypatch.setattr(cluster_admin, "_Client", make)
    return made


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[LabAdmin]:
    monkeypatch.setattr(cluster_admin, "_Client", FakeClient)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with LabAdmin(["127.0.0.1:1"], clock=lambda: now[0], sleep=sleep) as admin:
        yield admin


def client(admin: LabAdmin) -> FakeClient:
    return admin._client


def test_brokers_leave_out_those_that_are_fenced(admin: LabAdmin) -> None:
    client(admin).answers["describe_cluster"] = {
        "brokers": [{"broker_id": 3}, {"broker_id": 1, "is_fenced": False}, {"broker_id": 2, "is_fenced": True}]
    }
    assert admin.brokers() == [1, 3]


def test_controller_is_the_one_described(admin: LabAdmin) -> None:
    client(admin).answers["describe_cluster"] = {"brokers": [{"broker_id": 1}, {"broker_id": 2}], "controller_id": 2}
    assert admin.controller() == 2


def test_preferred_leaders_are_elected_by_topic(admin: LabAdmin) -> None:
    admin.elect_preferred_leaders([Partition("orders", 0), Partition("live", 3), Partition("orders", 1)])
    assert client(admin).asked == [("elect_leaders", (0, {"orders": [0, 1], "live": [3]}), {})]


def test_partitions_carry_leader_replicas_and_isr(admin: LabAdmin) -> None:
    entry = {"partition_index": 4, "leader_id": -1, "replica_nodes": [1, 2], "isr_nodes": [2]}
    client(admin).answers["describe_topics"] = [{"name": "orders", "error_code": 0, "partitions": [entry]}]
    assert admin.partitions(["orders"]) == {Partition("orders", 4): PartitionState(-1, (1, 2), (2,))}


@pytest.mark.parametrize(
    "error",
    [
        KafkaConnectionError("[Errno 104] Connection reset by peer"),
        NodeNotReadyError(1),
        NotControllerError(),
        RuntimeError("Failed to find active controller id!"),
    ],
)
def test_new_clients_repeat_a_request_while_a_broker_restarts(
    admin: LabAdmin, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A client keeps the controller that it once found, so the same one could fail for ever."""
    made = fail_clients(admin, monkeypatch, "alter_partition_reassignments", [error] * 4, {})
    admin.reassign({Partition("orders", 0): [2]})
    assert len(made) == 4
    assert admin.clock() == pytest.approx(0.8)  # four waits of 0.2 s


def test_topic_of_a_lost_answer_counts_as_created_or_deleted(admin: LabAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = KafkaConnectionError("reset")
    fail_clients(admin, monkeypatch, "create_topics", [lost], TopicAlreadyExistsError())
    admin.create_topic("orders", {0: [1]})
    with pytest.raises(ControlError):  # the first try is told that it exists
        admin.create_topic("orders", {0: [1]})
    fail_clients(admin, monkeypatch, "delete_topics", [lost], UnknownTopicOrPartitionError())
    admin.delete_topic("orders")


def test_failure_of_another_kind_is_not_repeated(admin: LabAdmin) -> None:
    client(admin).answers["list_partition_reassignments"] = RuntimeError("a defect")
    with pytest.raises(RuntimeError, match="a defect"):
        admin.reassignments()
    client(admin).answers["list_partition_reassignments"] = ClusterAuthorizationFailedError("who are you")
    with pytest.raises(ControlError, match="who are you"):
        admin.reassignments()
    assert len(client(admin).asked) == 2


def test_new_client_asks_again_if_the_old_lacks_a_broker(admin: LabAdmin) -> None:
    """It asks for the cluster's brokers every five minutes only; one that was added since is unknown until then."""
    old = client(admin)
    old.answers["delete_topics"] = UnknownBrokerIdError(2)
    admin.delete_topic("orders")
    assert old.asked == [("delete_topics", (["orders"],), {}), ("close", (), {})]
    assert client(admin).asked == [("delete_topics", (["orders"],), {})]


def test_old_client_stays_where_a_new_one_cannot_connect(admin: LabAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(**config: Any) -> FakeClient:
        raise KafkaConnectionError("nobody there")

    monkeypatch.setattr(cluster_admin, "_Client", nobody)
    old = client(admin)
    old.answers["delete_topics"] = UnknownBrokerIdError(2)
    with pytest.raises(ControlError, match="nobody there"):
        admin.delete_topic("orders")
    assert client(admin) is old
    assert old.asked == [("delete_topics", (["orders"],), {})]


def test_failing_connections_are_an_error_when_patience_ends(admin: LabAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    admin.patience_seconds = 1.0
    made = fail_clients(admin, monkeypatch, "describe_topics", [KafkaConnectionError("nobody there")] * 100, [])
    with pytest.raises(ControlError, match=r"Asking for topics failed: .*nobody there"):
        admin.partitions()
    assert len(made) == 5
    assert admin.clock() == pytest.approx(1.0)


def test_topic_with_an_error_is_refused(admin: LabAdmin) -> None:
    client(admin).answers["describe_topics"] = [{"name": "orders", "error_code": 3, "partitions": []}]
    with pytest.raises(ControlError, match="Describing topic orders failed: error code 3"):
        admin.partitions(["orders"])


def test_refusal_of_kafka_is_a_control_error_with_the_action(admin: LabAdmin) -> None:
    client(admin).answers["create_topics"] = TopicAlreadyExistsError("it is there")
    with pytest.raises(ControlError, match=r"Creating topic orders failed: .*it is there") as refused:
        admin.create_topic("orders", {0: [1]})
    assert refused.value.action == "Creating topic orders"


def test_brokers_that_are_too_old_are_told(admin: LabAdmin) -> None:
    client(admin).answers["list_partition_reassignments"] = IncompatibleBrokerVersion("no such api key")
    with pytest.raises(ControlError, match="Listing moves failed: the brokers are too old for it"):
        admin.reassignments()


def test_topic_is_created_with_its_assignment(admin: LabAdmin) -> None:
    admin.create_topic("orders", {0: (1, 2)}, {"segment.bytes": "1000"})
    wanted = {"orders": {"assignments": {0: [1, 2]}, "configs": {"segment.bytes": "1000"}}}
    assert client(admin).asked == [("create_topics", (wanted,), {"wait_for_metadata": True})]


def test_move_that_one_partition_refuses_is_an_error(admin: LabAdmin) -> None:
    client(admin).answers["alter_partition_reassignments"] = {
        TopicPartition("orders", 0): None,
        TopicPartition("orders", 1): BrokerResponseError("no leader is left"),
    }
    with pytest.raises(ControlError, match="Moving orders-1 failed: no leader is left"):
        admin.reassign({Partition("orders", 0): [2], Partition("orders", 1): None})


def test_waiting_for_moves_ends_when_none_is_listed(admin: LabAdmin) -> None:
    move = {"replicas": [1, 2], "adding_replicas": [2], "removing_replicas": []}
    listed = iter([{TopicPartition("orders", 0): move}, {TopicPartition("orders", 0): move}, {}])
    client(admin).answers["list_partition_reassignments"] = lambda: next(listed)
    assert admin.wait_for_reassignments(10, poll_seconds=0.5) == 1.0


def test_waiting_for_moves_names_those_left(admin: LabAdmin) -> None:
    move = {"replicas": [1, 2], "adding_replicas": [2], "removing_replicas": []}
    client(admin).answers["list_partition_reassignments"] = {TopicPartition("orders", 0): move}
    assert admin.reassignments() == {Partition("orders", 0): Reassignment((1, 2), (2,), ())}
    with pytest.raises(ControlError, match=r"1 still under way after 10 s \(orders-0\)"):
        admin.wait_for_reassignments(10)


def described(broker: dict[str, Any], topic: dict[str, Any]) -> dict[str, Any]:
    return {"broker": {"1": broker}, "topic": {"orders": topic}}


def test_refused_config_change_is_an_error(admin: LabAdmin) -> None:
    client(admin).answers["alter_configs"] = {"broker": {"1": "OK"}, "topic": {"orders": "[Error 29] denied"}}
    with pytest.raises(ControlError, match=r"Changing Kafka's own throttle of topic orders failed: .*denied"):
        admin.set_native_throttle({1: {"leader.replication.throttled.rate": 1}}, {"orders": {}})


def test_cleared_throttle_names_all_of_its_configs(admin: LabAdmin) -> None:
    client(admin).answers["reset_configs"] = {"broker": {"1": "OK"}, "topic": {"orders": "OK"}}
    admin.clear_native_throttle([1], ["orders"])
    resources = client(admin).asked[-1][1][0]
    assert [sorted(resource.configs) for resource in resources] == [
        ["follower.replication.throttled.rate", "leader.replication.throttled.rate"],
        ["follower.replication.throttled.replicas", "leader.replication.throttled.replicas"],
    ]


def test_hosts_are_told_of_fenced_brokers_too(admin: LabAdmin) -> None:
    """A broker that is down may have a sidecar that is up."""
    client(admin).answers["describe_cluster"] = {
        "brokers": [{"broker_id": 2, "host": "b", "is_fenced": True}, {"broker_id": 1, "host": "a"}]
    }
    assert admin.broker_hosts() == {1: "a", 2: "b"}


def test_throttle_settings_are_those_set_with_their_source(admin: LabAdmin) -> None:
    client(admin).answers["describe_configs"] = {
        "broker": {
            "1": {
                "num.io.threads": {"value": "8", "config_source": "DEFAULT_CONFIG"},
                "leader.replication.throttled.rate": {"value": "5", "config_source": "DYNAMIC_BROKER_CONFIG"},
                "follower.replication.throttled.rate": {"value": str(2**63 - 1), "config_source": "DEFAULT_CONFIG"},
            }
        },
        "topic": {
            "orders": {
                "leader.replication.throttled.replicas": {"value": "*", "config_source": "DYNAMIC_TOPIC_CONFIG"},
                "follower.replication.throttled.replicas": {"value": "", "config_source": "DEFAULT_CONFIG"},
            }
        },
    }
    assert admin.throttle_settings([1], ["orders"]) == [
        ThrottleSetting("broker", "1", "leader.replication.throttled.rate", "5", "DYNAMIC_BROKER_CONFIG"),
        ThrottleSetting("topic", "orders", "leader.replication.throttled.replicas", "*", "DYNAMIC_TOPIC_CONFIG"),
    ]


def test_unreadable_throttle_settings_are_no_missing_throttle(admin: LabAdmin) -> None:
    client(admin).answers["describe_configs"] = {"broker": {"1": {}}}
    with pytest.raises(ControlError, match="broker 1"):
        admin.throttle_settings([1], [])
