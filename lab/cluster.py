# SPDX-License-Identifier: Apache-2.0
"""Real Kafka clusters on loopback, with a weir sidecar for each broker where wanted."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from weir.control.cluster_admin import Partition
from weir.control.errors import ControlError
from weir.lab import broker_log, jars
from weir.lab.admin import LabAdmin
from weir.lab.broker import Broker
from weir.lab.errors import BadSigns, LabError, PortTaken, Timeout
from weir.lab.java import java_command
from weir.lab.network import LOOPBACK, Ports, egress_address
from weir.lab.options import LabOptions
from weir.lab.processes import Process, Supervisor
from weir.lab.received import INTERVAL_SECONDS, ReceivedBytes
from weir.lab.segments import compare_logs, segment_files
from weir.lab.settings import (
    Place,
    Route,
    hosts_file,
    properties_text,
    sidecar_toml,
)
from weir.lab.sidecar import Sidecar

_START_SECONDS = 90  # for a process to start; it usually takes 3 to 7, but the machine may be busy
_STARTS = 3  # attempts to start a whole cluster, as another program may take a port in between


class Cluster(ABC):
    """A cluster as a context manager (`with`, or `async with` from asyncio). Its methods block; see the package's text.

    Its `options` are those of LabOptions.
    """

    def __init__(self, version: str, brokers: int = 3, **options: Any) -> None:
        self.version = version
        self.fetch_version: int | None = None  # of its replicas; known where a lab.modes.Mode made the cluster
        self._options = LabOptions(brokers=brokers, **options)
        self._sidecar_options = self._options.told_sidecars
        self.broker_ids = self._options.broker_ids
        self.brokers: dict[int, Broker] = {}
        self.sidecars: dict[int, Sidecar] = {}
        self.places: dict[int, Place] = {}
        self._controller_port = 0  # KRaft mode only
        self._ports: Ports | None = None
        self._supervisor: Supervisor | None = None
        self._admin: LabAdmin | None = None

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything, and wait until it can be used.

        Raises LabError; only the logs that it names are then left.
        """
        for left in reversed(range(_STARTS)):
            try:
                self._start_once()
                return
            except PortTaken as error:
                self._end(error)
                if not left:
                    raise
                self._options.show(f"lab: {error.reason} Starting again with other ports.")
            except BaseException as error:
                self._end(error)
                raise

    def stop(self) -> None:
        """End every process, and remove every file of this lab."""
        self._end(None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._end, error)

    # -- what a cluster is asked and told ----------------------------------------------------------

    @property
    def admin(self) -> LabAdmin:
        """The admin client: topics, moves, configs."""
        if self._admin is None:
            self._admin = LabAdmin(self.bootstrap_servers)
        return self._admin

    @property
    def bootstrap_servers(self) -> list[str]:
        """host:port of every broker for clients.

        In ZooKeeper mode it leads through the broker's ingress, if there is one.
        """
        return [place.client_address for place in self.places.values()]

    @property
    def client_properties(self) -> dict[str, object]:
        """The properties with which a Java client reaches this cluster."""
        return {}

    @property
    def controller(self) -> int:
        """The id of the broker that is the controller now."""
        return self.admin.controller()

    def create_topic(
        self, topic: str, assignment: Mapping[int, Sequence[int]], configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic with these replicas by partition (leader first); wait until all exist and are in sync."""
        self.admin.create_topic(topic, assignment, configs)
        homes = [
            self.brokers[broker_id].data / f"{topic}-{partition}"
            for partition, replicas in assignment.items()
            for broker_id in replicas
        ]
        self.wait_for(f"every replica of {topic}", lambda: all(home.is_dir() for home in homes), 30)
        self.wait_for(f"{topic} in sync", lambda: self.is_in_sync(topic), 30)

    def is_in_sync(self, topic: str) -> bool:
        """Return whether each partition of a topic has a leader, and all of its replicas in the ISR."""
        states = self.admin.partitions([topic]).values()
        return all(s.leader >= 0 and set(s.in_sync_replicas) == set(s.replicas) for s in states)

    def reassign(self, moves: Mapping[tuple[str, int], Sequence[int]], seconds: float | None = None) -> float:
        """Start moves, (topic, partition) -> new replicas; with `seconds`, wait until they have ended.

        Returns the seconds that it took.
        """
        begun = time.monotonic()
        self.admin.reassign({Partition(*partition): replicas for partition, replicas in moves.items()})
        if seconds is not None:
            self.admin.wait_for_reassignments(seconds)
        return time.monotonic() - begun

    def native_throttles(self, topics: Iterable[str] | None = None) -> dict[str, dict[str, str]]:
        """Return what is set of Kafka's own throttles, by `broker 1` and `topic orders`; None means all topics."""
        names = sorted({partition.topic for partition in self.admin.partitions()}) if topics is None else topics
        found: dict[str, dict[str, str]] = {}
        for throttle in self.admin.throttle_settings(self.admin.brokers(), names):
            found.setdefault(f"{throttle.kind} {throttle.name}", {})[throttle.setting] = throttle.value
        return found

    def assert_no_native_throttle(self) -> None:
        """Check with DescribeConfigs that no throttle of Kafka's own is set on a broker or topic. Raises LabError."""
        found: dict[str, dict[str, str]] = {}

        def answered() -> bool:
            found.update(self.native_throttles())
            return True

        self.wait_for("an answer on every topic, new ones too", answered, 30)
        if found:
            raise LabError(f"Kafka's own throttle is set: {found}.")

    def wait_for(self, what: str, is_so: Callable[[], bool], seconds: float, poll_seconds: float = 0.1) -> float:
        """Wait until `is_so()` is true. While the cluster cannot answer, that counts as no.

        Returns the seconds that it took.
        """
        begun = time.monotonic()
        said = ""
        while True:
            try:
                if is_so():
                    return time.monotonic() - begun
            except ControlError as error:
                said = str(error)
            if time.monotonic() - begun > seconds:
                raise Timeout(what, seconds, said)
            time.sleep(poll_seconds)

    def segments(self, topic: str, partition: int, broker_id: int) -> list[Path]:
        """Return the segment files of a replica."""
        return segment_files(self.brokers[broker_id].data, topic, partition)

    def compare_segments(self, topic: str, partition: int, first: int, second: int) -> int:
        """Compare two brokers' replicas byte for byte; returns their size in bytes. Raises SegmentsDiffer."""
        sides = (self.segments(topic, partition, broker_id) for broker_id in (first, second))
        return compare_logs(f"{topic}-{partition}", *sides)

    def received_bytes(
        self, broker_id: int, partitions: Iterable[tuple[str, int]], interval: float = INTERVAL_SECONDS
    ) -> ReceivedBytes:
        """Return a sampler (a context manager) of the bytes that `broker_id` receives for these partitions."""
        data = self.brokers[broker_id].data
        return ReceivedBytes([(data, topic, partition) for topic, partition in partitions], interval)

    # -- faults ------------------------------------------------------------------------------------

    def kill_broker(self, broker_id: int) -> None:
        """Kill a broker with SIGKILL, as if its machine failed."""
        self.brokers[broker_id].kill()

    def stop_broker(self, broker_id: int, seconds: float = 60) -> None:
        """Stop a broker by a controlled shutdown, which first moves its leaders."""
        self.brokers[broker_id].stop(seconds)

    def start_broker(self, broker_id: int, seconds: float = _START_SECONDS) -> None:
        """Start a broker that has ended, with its old data and ports; wait until the cluster lists it."""
        broker = self.brokers[broker_id]
        self._before_restart(broker)
        broker.start()
        broker.wait_until_up(seconds)
        self.wait_for(f"broker {broker_id} in the cluster", lambda: broker_id in self.admin.brokers(), seconds)

    def kill_sidecar(self, broker_id: int) -> None:
        """Kill a sidecar: its connections break, and its ports refuse new ones."""
        self.sidecars[broker_id].kill()

    def start_sidecar(self, broker_id: int, seconds: float = 30) -> None:
        """Start a sidecar that has ended, with its file; wait until it is ready."""
        self.sidecars[broker_id].start()
        self.sidecars[broker_id].wait_until("/readyz", seconds)

    # -- logs --------------------------------------------------------------------------------------

    def bad_signs(self, allow: Collection[str] = ()) -> list[broker_log.LogLine]:
        """Return the lines of all brokers' logs with a bad sign (broker_log.BAD_SIGNS) that is not in `allow`."""
        return [line for broker in self.brokers.values() for line in broker_log.bad_signs(broker.log, allow)]

    def errors(self) -> list[broker_log.LogLine]:
        """Return what the brokers logged at ERROR or FATAL."""
        return [line for broker in self.brokers.values() for line in broker_log.errors(broker.log)]

    def check_logs(self, allow: Collection[str] = ()) -> None:
        """Raise BadSigns when a broker's log has a bad sign that is not in `allow`."""
        if lines := self.bad_signs(allow):
            raise BadSigns([str(line) for line in lines])

    def java_tool(
        self,
        name: str,
        main_class: str,
        arguments: Sequence[str],
        *,
        heap_mb: int = 256,
        seconds: float | None = 300,
        more_jars: Sequence[Path] = (),
        log_level: str = "warn",
        version: str | None = None,
    ) -> Process:
        """Run one of Kafka's tools, and wait for its end unless `seconds` is None. `more_jars` are those it needs too.

        `version` names the list of its jars where it is not the brokers'. Raises ProcessFailed when it fails.
        """
        options: dict[str, Any] = {"more_jars": more_jars, "heap_mb": heap_mb, "log_level": log_level}
        command = self._java(main_class, arguments, version=version, **options)
        tool = Process(self._lab, name, command, self._lab.log(f"{name}-{len(self._lab.processes)}"))
        tool.start()
        if seconds is not None and (status := tool.wait(seconds)):
            raise tool.failure(f"ended with status {status}.")
        return tool

    # -- how it is built ---------------------------------------------------------------------------

    @abstractmethod
    def _prepare(self, ports: Ports) -> None:
        """Take the ports that only this mode needs, and start what the brokers need."""

    @abstractmethod
    def _client_port(self, advertised: int, ports: Ports) -> int:
        """Return a broker's port for clients, by the port that it advertises to other brokers."""

    @abstractmethod
    def _properties_of(self, place: Place, data: Path) -> dict[str, object]:
        """Return the lab's own properties of one broker."""

    def _wait_for_prepared(self) -> None:  # noqa: B027 - only ZooKeeper mode has something to wait for
        """Wait for what `_prepare` started, and do what has to be done before the brokers start."""

    def _before_restart(self, broker: Broker) -> None:  # noqa: B027 - only ZooKeeper mode has to wait
        """Wait until an ended broker may come back."""

    @property
    def _lab(self) -> Supervisor:
        if self._supervisor is None:
            raise LabError("The cluster was not started.")
        return self._supervisor

    def _start_once(self) -> None:
        jars.ensure(self.version, report=self._options.show)
        self._supervisor = Supervisor(self._options.show)
        self._ports = Ports((LOOPBACK, *map(egress_address, self.broker_ids)))
        self._prepare(self._ports)
        self.places = {broker_id: self._place(broker_id, self._ports) for broker_id in self.broker_ids}
        self.brokers = {broker_id: self._broker(place) for broker_id, place in self.places.items()}
        self.sidecars = {broker_id: self._sidecar(place) for broker_id, place in self.places.items() if place.route}
        for sidecar in self.sidecars.values():
            sidecar.start()
        self._wait_for_prepared()
        for sidecar in self.sidecars.values():
            sidecar.wait_until("/healthz", _START_SECONDS)
        for broker in self.brokers.values():
            broker.start()
        for broker in self.brokers.values():
            broker.wait_until_up(_START_SECONDS)
        for sidecar in self.sidecars.values():
            sidecar.wait_until("/readyz", _START_SECONDS)
        self.wait_for("a cluster of all brokers", lambda: self.admin.brokers() == list(self.broker_ids), _START_SECONDS)

    def _place(self, broker_id: int, ports: Ports) -> Place:
        route = self._options.route(broker_id)
        advertised = ports.take()
        return Place(
            broker_id=broker_id,
            route=route,
            advertised=advertised,
            listener=ports.take() if Route.INGRESS in route else advertised,
            client=self._client_port(advertised, ports),
            admin=ports.take() if route else 0,
            controller=self._controller_port,
        )

    def _broker(self, place: Place) -> Broker:
        home = self._lab.folder / f"broker-{place.broker_id}"
        data = home / "data"
        data.mkdir(parents=True)
        own = self._options.broker_properties.get(place.broker_id, {})
        properties = home / "server.properties"
        properties.write_text(properties_text({**self._properties_of(place, data), **self._options.properties, **own}))
        hosts = home / "hosts"
        hosts.write_text(hosts_file(place, socket.gethostname(), self.places.values()))
        command = self._java(
            "kafka.Kafka",
            [str(properties)],
            heap_mb=self._options.heap_mb,
            properties={"jdk.net.hosts.file": str(hosts)},
            flags=self._options.jvm_flags,
        )
        return Broker(self._lab, place, command, self._lab.log(f"broker-{place.broker_id}"), data)

    def _java(
        self,
        main_class: str,
        arguments: Sequence[str],
        more_jars: Sequence[Path] = (),
        version: str | None = None,
        **options: Any,
    ) -> list[str]:
        classes = [*jars.classpath(version or self.version), *more_jars]
        archive = jars.class_archive(version or self.version)
        return java_command(classes, main_class, arguments, class_archive=archive, **options)

    def _sidecar(self, place: Place) -> Sidecar:
        config = self._lab.folder / f"sidecar-{place.broker_id}.toml"
        config.write_text(sidecar_toml(place, list(self.places.values()), self._sidecar_options))
        return Sidecar(
            self._lab,
            place.broker_id,
            self._options.sidecar_command(config),
            config,
            self._lab.log(f"sidecar-{place.broker_id}"),
            place.admin_address,
            {**os.environ, **self._options.sidecar_env},
        )

    def _end(self, error: BaseException | None) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        if self._supervisor is not None:
            self._supervisor.end(error)
            self._supervisor = None
        if self._ports is not None:
            self._ports.close()
            self._ports = None
