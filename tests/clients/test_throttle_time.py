# SPDX-License-Identifier: Apache-2.0
"""Which clients wait when an answer tells them to (`throttle_time_ms`), for how long, and what they hold back."""

from __future__ import annotations

from typing import Final

import pytest

from tests.clients.checks import every_client, filled, new_topic, run, written
from tests.clients.drivers import Drivers
from tests.clients.telling_link import telling
from weir.lab.cluster import Cluster
from weir.protocol.header import FETCH, PRODUCE

pytestmark = pytest.mark.clients

TOLD: Final = 2.0  # seconds
COUNT: Final = 500  # records: twenty batches
WAIT: Final = {"franz-go", "sarama", "kafkajs", "kafka-python", "java", "rskafka"}


@every_client
@pytest.mark.parametrize(("role", "api_key"), [("produce", PRODUCE), ("consume", FETCH)])
def test_who_waits_when_told(cluster: Cluster, drivers: Drivers, client: str, role: str, api_key: int) -> None:
    place = cluster.places[1]
    topic = filled(cluster, COUNT, 25) if role == "consume" else new_topic(cluster)
    drivers.command(client, {})  # so that it is built
    cluster.kill_sidecar(1)
    try:
        with telling(place.advertised, place.listener, round(1000 * TOLD)) as link:
            outcome = run(cluster, drivers, client, role, topic, COUNT, in_flight=1, acks=1)
    finally:
        cluster.start_sidecar(1)
    versions = {one.version for one in link.seen if one.api_key == api_key}
    pauses = link.pauses(api_key)
    figures = (
        f"{min(pauses):.2f} to {max(pauses):.2f} s of {TOLD:g}, {link.beside(api_key, TOLD)} of other kinds meanwhile"
    )
    print(f"{client}, {role} v{versions}: {figures}")
    assert outcome.distinct == COUNT
    if role == "produce":  # rskafka takes what it is told for an error, and sends its records again
        assert (written(cluster, topic).records == COUNT) == (client != "rskafka")
    assert (max(pauses) > 0.9 * TOLD) == (client in WAIT)
