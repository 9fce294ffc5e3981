# SPDX-License-Identifier: Apache-2.0
"""deploy/compose: the file reads as it is meant, and every sidecar's file passes `weir check`."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.deploy.files import CONFIGURATION, DEPLOY
from weir.proxy.config.load import load_config
from weir.proxy.config.tables import Config

COMPOSE = DEPLOY / "compose" / "compose.yaml"
BROKERS = (1, 2, 3)


def services() -> dict[str, Any]:
    found = yaml.safe_load(COMPOSE.read_text())["services"]
    assert isinstance(found, dict)
    return found


def sidecar(broker_id: int) -> Config:
    """The file that the sidecar of a broker mounts."""
    (volume,) = services()[f"weir{broker_id}"]["volumes"]
    source, target, mode = volume.split(":")
    assert (target, mode) == ("/etc/weir/weir.toml", "ro")
    return load_config(COMPOSE.parent / source)


def test_each_service_has_a_versioned_image_that_can_be_changed() -> None:
    for name, service in services().items():
        assert re.fullmatch(r"\$\{[A-Z]+_IMAGE:-[\w/]+:v?\d+\.\d+\.\d+\}", service["image"]), name


def test_no_port_is_taken_twice_and_none_is_open_to_others() -> None:
    published = [port.rsplit(":", 1)[0] for service in services().values() for port in service.get("ports", [])]
    assert len(set(published)) == len(published) == 7
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_service_mounts_what_is_there() -> None:
    declared = yaml.safe_load(COMPOSE.read_text())["volumes"]
    for service in services().values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in declared or (COMPOSE.parent / source).exists(), source


@pytest.mark.parametrize("broker_id", BROKERS)
def test_each_brokers_name_leads_to_its_own_sidecar(broker_id: int) -> None:
    config = sidecar(broker_id)
    broker = services()[f"kafka{broker_id}"]
    assert config.broker_id == broker["environment"]["KAFKA_NODE_ID"] == broker_id
    assert services()[f"weir{broker_id}"]["network_mode"] == f"service:kafka{broker_id}"
    names = dict(host.split(":") for host in broker["extra_hosts"])
    routes = {egress.peer: egress.listen for egress in config.egress} | {broker_id: config.ingress[1].listen}
    advertised = listeners(broker_id, "KAFKA_ADVERTISED_LISTENERS", "REPLICATION")
    assert sorted(routes) == list(BROKERS)
    for peer, listen in routes.items():
        assert (names[f"broker{peer}.replication"], 9095) == (listen.host, listen.port)
        assert listeners(peer, "KAFKA_ADVERTISED_LISTENERS", "REPLICATION") == f"broker{peer}.replication:9095"
    assert advertised == f"broker{broker_id}.replication:9095"


@pytest.mark.parametrize("broker_id", BROKERS)
def test_a_sidecar_and_its_broker_share_a_network_and_no_port(broker_id: int) -> None:
    config = sidecar(broker_id)
    listening = [*(route.listen for route in config.ingress), *(route.listen for route in config.egress)]
    own = {str(address.port) for address in (*listening, config.admin.listen)}
    text = services()[f"kafka{broker_id}"]["environment"]["KAFKA_LISTENERS"]
    brokers = {listener.rsplit(":", 1)[1] for listener in text.split(",")}
    assert own == {"9094", "9095", "9690"}
    assert brokers == {"9092", "9192", "9093", "19094"}
    upstreams = {str(route.upstream) for route in config.ingress}
    assert upstreams == {listeners(broker_id, "KAFKA_LISTENERS", "REPLICATION")}


def test_prometheus_finds_sidecars_under_their_brokers_names() -> None:
    targets = yaml.safe_load(CONFIGURATION.read_text())["scrape_configs"][0]["static_configs"]
    assert [each["targets"] for each in targets] == [[f"kafka{broker_id}:9690"] for broker_id in BROKERS]
    assert {f"kafka{broker_id}" for broker_id in BROKERS} < set(services())


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker is not installed")
def test_compose_takes_the_file() -> None:
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker has no compose here")
    done = subprocess.run(["docker", "compose", "--file", COMPOSE, "config", "--quiet"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def listeners(broker_id: int, key: str, name: str) -> str:
    """The host and port of one of a broker's listeners."""
    text = services()[f"kafka{broker_id}"]["environment"][key]
    return str(dict(listener.split("://") for listener in text.split(","))[name])
