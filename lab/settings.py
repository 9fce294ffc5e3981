# SPDX-License-Identifier: Apache-2.0
"""The layout of a lab, and the files that describe it: broker properties, hosts files, sidecars' TOML.

Only text is made here; nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Flag
from typing import Any

from weir.lab.network import LOOPBACK, egress_address

Throttle = Mapping[str, Any]
"""A throttle table as for PUT /v1/throttle: rates by Kafka's names, and `topics`."""


class Route(Flag):
    """Which of a broker's replication traffic goes through its own sidecar."""

    NONE = 0
    INGRESS = 1  # leader side: requests of other brokers (in ZooKeeper mode also of clients)
    EGRESS = 2  # follower side: fetches from other brokers
    BOTH = 3  # with BOTH everywhere, replication takes two hops
    CONTROLLER = 4  # requests to KRaft's controller: without its sidecar the broker is then cut off from all others


_CONTROLLER = "controller"  # the host name of KRaft's controller


@dataclass(frozen=True, kw_only=True)
class Place:
    """The ports of one broker and its sidecar, all on 127.0.0.1 except for the egress listeners."""

    broker_id: int
    route: Route
    advertised: int  # the port that the inter-broker listener advertises
    listener: int  # where that listener really is: `advertised`, unless an ingress stands in front
    client: int  # KRaft's listener for clients; in ZooKeeper mode `advertised`
    admin: int  # the sidecar's HTTP
    controller: int = 0  # KRaft's controller; 0 in ZooKeeper mode
    name: str = "localhost"  # the host that KRaft's inter-broker listener advertises

    @property
    def resolves_localhost_to(self) -> str:
        """The address at which this broker looks for its peers."""
        return egress_address(self.broker_id) if Route.EGRESS in self.route else LOOPBACK

    @property
    def admin_address(self) -> str:
        """host:port of the sidecar's HTTP."""
        return f"{LOOPBACK}:{self.admin}"

    @property
    def client_address(self) -> str:
        """host:port for clients."""
        return f"{LOOPBACK}:{self.client}"

    @property
    def direct_address(self) -> str:
        """host:port at which a client reaches the broker past every sidecar."""
        return self.client_address if self.client != self.advertised else self.listener_address

    @property
    def listener_address(self) -> str:
        """host:port of the real inter-broker listener."""
        return f"{LOOPBACK}:{self.listener}"

    @property
    def advertised_address(self) -> str:
        """host:port of whatever stands in front of the inter-broker listener, if anything does."""
        return f"{LOOPBACK}:{self.advertised}"


@dataclass(frozen=True, kw_only=True)
class SidecarOptions:
    """What every sidecar of a lab is configured with, besides its routes.

    - `throttle`: one table for all, or one for each broker id; None is no throttle.
    - `tables`: further tables of the configuration, such as {"fetch": {"response_max_bytes": 1_000_000}}.
    - `ingress`: further keys of each [[ingress]] by broker id, such as {1: {"tls": {...}}}.
    - `egress`: further keys of each [[egress]] by broker id and peer.
    - `poll_isr`: adds [cluster], with the sidecar's own broker.
    """

    policy: str | None = None
    throttle: Throttle | Mapping[int, Throttle] | None = None
    poll_isr: bool = False
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ingress: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    egress: Mapping[int, Mapping[int, Mapping[str, Any]]] = field(default_factory=dict)

    def throttle_of(self, broker_id: int) -> Throttle | None:
        """Return the table for one broker."""
        if self.throttle is None or all(isinstance(key, str) for key in self.throttle):
            return self.throttle  # type: ignore[return-value] # str keys: it is the table itself
        return self.throttle.get(broker_id)  # type: ignore[call-overload] # int keys: one a broker


def hosts_file(place: Place, machine: str, places: Iterable[Place] = ()) -> str:
    """Return the hosts file of a broker: with `-Djdk.net.hosts.file` it resolves names from this file alone."""
    controller = egress_address(place.broker_id) if Route.CONTROLLER in place.route else LOOPBACK
    names = sorted({"localhost", *(peer.name for peer in places)})
    brokers = "".join(f"{place.resolves_localhost_to} {name}\n" for name in names)
    return f"{brokers}{LOOPBACK} {machine}\n{controller} {_CONTROLLER}\n"


def sidecar_toml(place: Place, places: list[Place], options: SidecarOptions) -> str:
    """Return the configuration of `place`'s sidecar."""
    entries: list[tuple[str, Mapping[str, Any]]] = []
    more = options.ingress.get(place.broker_id, {})
    if Route.INGRESS in place.route:
        entries.append(("[ingress]", {"listen": place.advertised_address, "upstream": place.listener_address, **more}))
    if Route.EGRESS in place.route:
        here = place.resolves_localhost_to
        # A controller in ZooKeeper mode connects to its own broker too, by the name that now leads to the sidecar.
        own = {"listen": f"{here}:{place.advertised}", "upstream": place.listener_address}
        entries.append(("[ingress]", {**own, **more}))
        for peer in places:
            if peer.broker_id != place.broker_id:
                route = {"listen": f"{here}:{peer.advertised}", "upstream": peer.advertised_address}
                more = options.egress.get(place.broker_id, {}).get(peer.broker_id, {})
                entries.append(("[egress]", {"peer": peer.broker_id, **route, **more}))
    if Route.CONTROLLER in place.route and place.controller:
        route = {"listen": f"{egress_address(place.broker_id)}:{place.controller}"}
        entries.append(("[ingress]", {**route, "upstream": f"{LOOPBACK}:{place.controller}"}))
    fleet = ",".join(peer.admin_address for peer in places if peer.route)
    tables: dict[str, Mapping[str, Any]] = {"admin": {"listen": place.admin_address, "fleet": fleet}}
    if options.poll_isr:
        tables["cluster"] = {"bootstrap_servers": place.direct_address}
    if options.policy:
        tables["quota"] = {"policy": options.policy}
    for name, table in options.tables.items():
        tables[name] = {**tables.get(name, {}), **table}
    if throttle := options.throttle_of(place.broker_id):
        tables["throttle"] = {**tables.get("throttle", {}), **throttle}
    text = [f"broker_id = {place.broker_id}\n"]
    for header, table in (*entries, *tables.items()):
        text += _toml_table(header, table)
    return "\n".join(text)


def toml_text(config: Mapping[str, Any]) -> str:
    """Return a configuration as TOML."""
    text = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in config.items() if not _is_table(value)]
    for key, value in config.items():
        if _is_table(value):
            text += _toml_table(json.dumps(key), value)
    return "\n".join(text)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _toml_table(name: str, table: Mapping[str, Any]) -> list[str]:
    # JSON's strings, numbers and booleans are TOML's; only tables need a heading of their own.
    lines = [f"[{name}]"]
    tables: list[tuple[str, Mapping[str, Any]]] = []
    for key, value in table.items():
        of_key = f"{name.strip('[]')}.{json.dumps(key)}"
        if isinstance(value, Mapping):
            tables.append((of_key, value))
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            tables += [(f"[{of_key}]", one) for one in value]
        else:
            lines.append(f"{json.dumps(key)} = {json.dumps(value)}")
    lines.append("")
    for of_key, value in tables:
        lines += _toml_table(of_key, value)
    return lines


def properties_text(properties: Mapping[str, object]) -> str:
    """Return a Java properties file; True and False become Java's words."""
    return "".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}\n" for key, value in properties.items()
    )


_COMMON: dict[str, object] = {
    # One small copy of each internal topic, or a lab of one broker would wait for ever for three.
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": False,
    "auto.leader.rebalance.enable": False,  # a leader moves only when a test says so
    "log.cleaner.dedupe.buffer.size": 4 * 2**20,  # instead of 128 MiB, a third of the heap
    "log.segment.delete.delay.ms": 1000,
    "metric.reporters": "",  # nobody asks by JMX, and each of its beans costs a start a little
}


def kraft_properties(place: Place, controller: int, data: str) -> dict[str, object]:
    """Return the properties of a KRaft broker; `controller` is the id of the one that is the only controller too."""
    is_controller = place.broker_id == controller
    listeners = [f"CLIENT://{LOOPBACK}:{place.client}", f"REPL://{LOOPBACK}:{place.listener}"]
    advertised = [f"CLIENT://localhost:{place.client}", f"REPL://{place.name}:{place.advertised}"]
    if is_controller:
        listeners.append(f"CONTROLLER://{LOOPBACK}:{place.controller}")
        # By a name, as brokers take over what the controller says of itself (KIP-853): it may lead through a sidecar.
        advertised.append(f"CONTROLLER://{_CONTROLLER}:{place.controller}")
    return {
        "node.id": place.broker_id,
        "process.roles": "broker,controller" if is_controller else "broker",
        "controller.quorum.voters": f"{controller}@{_CONTROLLER}:{place.controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,REPL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "REPL",
        "log.dirs": data,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "metadata.max.idle.interval.ms": 5000,  # by default all brokers take an empty record twice a second
        **_COMMON,
    }


def zookeeper_mode_properties(place: Place, zookeeper: int, level: str, data: str) -> dict[str, object]:
    """Return the properties of a broker in ZooKeeper mode at an inter.broker.protocol.version such as 0.10.1.

    Below 0.10.2 only one PLAINTEXT listener may exist, so clients share it with the brokers.
    """
    return {
        "broker.id": place.broker_id,
        "zookeeper.connect": f"{LOOPBACK}:{zookeeper}",
        "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
        "listeners": f"PLAINTEXT://{place.listener_address}",
        "advertised.listeners": f"PLAINTEXT://localhost:{place.advertised}",
        "inter.broker.protocol.version": level,
        **({"log.message.format.version": level} if _before(level, (3, 0)) else {}),
        "log.dirs": data,
        **_COMMON,
    }


SESSION_TIMEOUT_MS = 6000
"""How long ZooKeeper keeps a dead broker's registration; until then a restarted one is refused."""


def zookeeper_config(port: int, data: str) -> str:
    """Return zoo.cfg; a short tick, because ZooKeeper grants no session shorter than two of them."""
    return properties_text(
        {
            "dataDir": data,
            "clientPort": port,
            "clientPortAddress": LOOPBACK,
            "tickTime": 500,
            "maxClientCnxns": 0,
            "admin.enableServer": False,
            "maxSessionTimeout": 60000,
        }
    )


def has_record_batches(level: str) -> bool:
    """Return whether logs of a level keep record batches (magic 2): for idempotent and transactional producers."""
    return not _before(level, (0, 11))


def has_zstd(level: str) -> bool:
    """Return whether brokers at a level take records compressed with zstd (KIP-110)."""
    return not _before(level, (2, 1))


def configs_tool(version: str) -> str:
    """Return the class of a Kafka version's kafka-configs, which moved with 4.4."""
    return "kafka.admin.ConfigCommand" if _before(version, (4, 4)) else "org.apache.kafka.tools.ConfigCommand"


def _before(level: str, other: tuple[int, int]) -> bool:
    major, minor = level.split("-")[0].split(".")[:2]
    return (int(major), int(minor)) < other
