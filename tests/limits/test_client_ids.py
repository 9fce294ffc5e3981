# SPDX-License-Identifier: Apache-2.0
"""The names that Kafka Connect and MirrorMaker 2 give their clients."""

from __future__ import annotations

import pytest

from weir.limits.client_ids import ClientName, connector_of, read_client_id


@pytest.mark.parametrize(
    ("client_id", "name"),
    [
        ("connector-consumer-s3-sink-0", ClientName("sink", "s3-sink", 0)),
        ("connector-consumer-s3-2024-11", ClientName("sink", "s3-2024", 11)),
        ("connector-producer-files-3", ClientName("source", "files", 3)),
        ("connector-dlq-producer-s3-0", ClientName("dlq", "s3", 0)),
        ("A->B|MirrorSourceConnector-0|replication-consumer", ClientName("mirror", "MirrorSourceConnector", 0)),
        ("ann|A->B|MirrorSourceConnector-12|replication-consumer", ClientName("mirror", "MirrorSourceConnector", 12)),
        (
            "team|x->y|A->B|MirrorSourceConnector-1|replication-consumer",
            ClientName("mirror", "MirrorSourceConnector", 1),
        ),
        ("A->B|my|mirror-2|replication-consumer", ClientName("mirror", "my|mirror", 2)),
        ("A->B|MirrorSourceConnector-?|replication-source-admin", ClientName("other")),
        ("A->B|MirrorSourceConnector|replication-source-admin", ClientName("other")),
        ("connector-producer-MirrorSourceConnector-0", ClientName("source", "MirrorSourceConnector", 0)),
        ("connector-consumer-0", ClientName("other")),
        ("connector-consumer-s3", ClientName("other")),
        ("connector-consumer--0", ClientName("other")),
        ("connector-consumer-s3-0x", ClientName("other")),
        ("connector-consumer-s3-" + "9" * 400, ClientName("other")),
        ("consumer-group-1", ClientName("other")),
        ("connect-cluster-offsets", ClientName("other")),
        ("", ClientName("other")),
        ("é\nconnector-consumer-s3-0", ClientName("other")),
    ],
)
def test_a_client_id_names_its_connector_and_task(client_id: str, name: ClientName) -> None:
    assert read_client_id(client_id) == name


def test_last_number_is_the_task_and_names_may_have_line_feeds() -> None:
    assert read_client_id("connector-consumer-a\nb-1-2") == ClientName("sink", "a\nb-1", 2)


def test_tasks_of_one_connector_are_together_and_others_apart() -> None:
    ids = [
        *("connector-consumer-s3-0", "connector-consumer-s3-1"),
        *("connector-producer-s3-0", "connector-dlq-producer-s3-0", "connector-consumer-s3-1-0"),
        *("A->B|Mirror-0|replication-consumer", "A->B|Mirror-7|replication-consumer"),
        *("B->A|Mirror-0|replication-consumer", "A->B|Mirror-0|offset-syncs-producer"),
        *("mine", "theirs"),
    ]
    assert [connector_of(one) for one in ids[:2]] == ["sink:s3"] * 2
    assert connector_of(ids[5]) == connector_of(ids[6])
    assert len({connector_of(one) for one in ids}) == len(ids) - 2
