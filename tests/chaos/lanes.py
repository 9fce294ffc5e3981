# SPDX-License-Identifier: Apache-2.0
"""Carries out the faults of a chaos run: one lane for each sidecar, and one for the brokers, each in order of time.

Faults of different lanes overlap: a sidecar may be stopped while a broker is down. Those of one lane do not.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tests.chaos.faults import BROKER_KINDS, EVERYWHERE, LIVE, MOVED, Fault, Kind
from weir.control.cluster_admin import Partition, PartitionState
from weir.control.errors import ControlError
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.settings import SidecarOptions, sidecar_toml

FIRST_VERSION_OF_LEADER_EPOCHS: Final = 5  # of Fetch: what replicas use from inter.broker.protocol.version 0.11 on
_BROKEN_FILES: Final = ('broker_id = 1\n[[ingress]\nlisten = "', "broker_ids = 1\n", "")
_METHODS: Final = {Kind.PUT: "PUT", Kind.PUT_EVERYWHERE: "PUT", Kind.PATCH: "PATCH", Kind.DELETE: "DELETE"}
_ANSWER_SECONDS: Final = 20.0  # of a running sidecar, on a busy machine
_BROKER_UP_SECONDS: Final = 180.0
_RELIEF_SECONDS: Final = 60.0  # then throttles are lifted: at 0 a returned replica may have to wait for ever
_PATIENCE_SECONDS: Final = 240.0
_QUIET_SECONDS: Final = 3.0  # six long polls


@dataclass(frozen=True, slots=True)
class Happened:
    """A fault that was carried out; times are seconds of the wall clock, as in the brokers' logs."""

    fault: Fault
    begun: float
    ended: float


class Target:
    """A sidecar that faults are for. `lock` is held while one lasts; `changes` grows when one begins and ends."""

    def __init__(self, cluster: Cluster, broker_id: int, options: SidecarOptions) -> None:
        self.broker_id = broker_id
        self.sidecar = cluster.sidecars[broker_id]
        self.lock = threading.Lock()
        self.changes = 0
        self.table: Mapping[str, Any] = options.throttle_of(broker_id) or {}  # in force
        self._cluster = cluster
        self._options = options
        self._in_file = self.table

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have the sidecar for oneself, and let what measures it know."""
        with self.lock:
            self.changes += 1
            try:
                yield
            finally:
                self.changes += 1

    def hit(self, fault: Fault) -> None:
        """Carry out a fault, and see that what it leaves is in force. Raises LabError."""
        match fault.kind:
            case Kind.KILL_SIDECAR:
                self.sidecar.kill()
                time.sleep(fault.seconds)
                self.sidecar.start()
                self.sidecar.wait_until("/healthz", _ANSWER_SECONDS * 3)
                self._expect(self._in_file)
            case Kind.STOP_SIDECAR:
                self.sidecar.send(signal.SIGSTOP)
                try:
                    time.sleep(fault.seconds)
                finally:
                    self.sidecar.send(signal.SIGCONT)
                self.sidecar.wait_until("/healthz", _ANSWER_SECONDS)
            case Kind.RELOAD_BROKEN:
                before, good = self._in_force(), self.sidecar.config.read_text()
                self.sidecar.config.write_text(_BROKEN_FILES[int(fault.at * 1000) % len(_BROKEN_FILES)])
                try:
                    self._hang_up("refused")
                finally:
                    self.sidecar.config.write_text(good)
                self._expect(before)
            case Kind.RELOAD | Kind.RELOAD_CHANGED:
                if fault.table:
                    options = SidecarOptions(throttle=fault.table, poll_isr=self._options.poll_isr)
                    places = self._cluster.places
                    text = sidecar_toml(places[self.broker_id], list(places.values()), options)
                    self.sidecar.config.write_text(text)
                    self._in_file = fault.table
                self._hang_up("ok")
                self._expect(self._in_file)
            case _:
                self.change(_METHODS[fault.kind], fault.table)

    def change(self, method: str, table: Mapping[str, Any] | None = None) -> None:
        """Change the throttle by HTTP (PUT, PATCH, DELETE)."""
        status, said = self.sidecar.http(method, "/v1/throttle", table or None, seconds=_ANSWER_SECONDS)
        if status != 200:
            raise LabError(f"{method} /v1/throttle was answered with {status}: {said.strip()}")
        if method == "PATCH":
            self.table = self._in_force()
        else:
            self._expect(table or {})

    def _hang_up(self, result: str) -> None:
        def counted() -> float:
            return self.sidecar.metrics().value("weir_config_reloads_total", result=result)

        before = counted()
        self.sidecar.send(signal.SIGHUP)
        self._cluster.wait_for(f"a reload that is {result}", lambda: counted() > before, _ANSWER_SECONDS)

    def _expect(self, table: Mapping[str, Any]) -> None:
        """Have this table in force, or raise LabError."""
        wanted = {"topics": {}, **table}
        self.table = self._in_force()
        if self.table != wanted:
            raise LabError(f"the throttle in force is {self.table}, not {wanted}.")

    def _in_force(self) -> dict[str, Any]:
        found: dict[str, Any] = self.sidecar.throttle()
        del found["sources"], found["layers"]
        return found


class Lanes:
    """All lanes of a run. `violations` gets a sentence for whatever did not go as it must.

    A `gate` is held by each move. Where there is one a broker is hit between two moves, when nothing else was for a
    while and all followers know what is acknowledged: below 0.11 Kafka itself would lose records else (bench.chaos).
    """

    def __init__(
        self,
        cluster: Cluster,
        targets: Mapping[int, Target],
        faults: Sequence[Fault],
        violations: list[str],
        say: Callable[[str], None],
        gate: threading.Lock | None = None,
    ) -> None:
        self.happened: list[Happened] = []
        self.reliefs = 0
        self._cluster = cluster
        self._targets = targets
        self._violations = violations
        self._gate = gate
        self._say_line = say
        self._stop = threading.Event()
        self._abandoned = threading.Event()
        self._begun = time.monotonic()
        lanes: dict[int, list[Fault]] = {}  # those of brokers in lane 0
        for fault in faults:
            own = min(targets) if fault.target == EVERYWHERE else fault.target
            lanes.setdefault(0 if fault.kind in BROKER_KINDS else own, []).append(fault)
        self._threads = [
            threading.Thread(target=self._run, args=(lane,), name=f"chaos-lane-{key}", daemon=True)
            for key, lane in lanes.items()
        ]

    def start(self) -> None:
        """Begin; the faults' times count from now."""
        self._begun = time.monotonic()
        for thread in self._threads:
            thread.start()

    def finish(self, seconds: float) -> None:
        """Begin no further fault, and wait until those that last are over: all is up then."""
        self._stop.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise LabError(f"{thread.name} did not come to its end within {seconds:g} s.")

    def abandon(self) -> None:
        """Wait for no more than what is being done now: nothing is to be started when the cluster ends."""
        self._stop.set()
        self._abandoned.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_BROKER_UP_SECONDS)

    def lift_throttles(self) -> None:
        """Throttle nothing anywhere."""
        for target in self._targets.values():
            with target.held():
                target.change("DELETE")

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begun

    def say(self, line: str) -> None:
        """Print what happens, and when."""
        self._say_line(f"{self.seconds:6.1f} s  {line}")

    def _run(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            if self._stop.wait(max(0.0, fault.at - self.seconds)):
                return
            begun = time.time()
            try:
                self._carry_out(fault)
            except Exception as error:  # noqa: BLE001 - whatever it is, the run has to end with it told
                self._violations.append(f"{fault}, at {fault.at:.1f} s: {type(error).__name__}: {error}")
                self.say(f"WRONG {self._violations[-1]}")
            self.happened.append(Happened(fault, begun, time.time()))

    def _carry_out(self, fault: Fault) -> None:
        if fault.kind in BROKER_KINDS:
            self._hit_broker(fault)
            return
        targets = list(self._targets.values()) if fault.target == EVERYWHERE else [self._targets[fault.target]]
        self.say(str(fault))
        for target in targets:  # never two at once: two lanes would wait for each other
            with target.held():
                target.hit(fault)

    def _hit_broker(self, fault: Fault) -> None:
        gate = self._gate
        self._wait_until("replicas are behind", self._is_in_sync)
        if gate is None:
            self._end_broker(fault)
        else:
            self._wait_until("a move goes on", partial(gate.acquire, timeout=1.0))
            try:
                with ExitStack() as stack:
                    self._settle(stack)
                    self._end_broker(fault)
                self._wait_until("there is no new leader", lambda: fault.target not in self._leaders().values())
                time.sleep(_QUIET_SECONDS)
            finally:
                gate.release()
        time.sleep(fault.seconds)
        self._cluster.start_broker(fault.target, _BROKER_UP_SECONDS)
        self._wait_until("replicas are behind", self._is_in_sync)

    def _end_broker(self, fault: Fault) -> None:
        self.say(str(fault))
        end = self._cluster.kill_broker if fault.kind is Kind.KILL_BROKER else self._cluster.stop_broker
        end(fault.target)

    def _settle(self, stack: ExitStack) -> None:
        """Return with all sidecars held and no leader changed for a while: then followers know what is acknowledged."""
        while not self._abandoned.is_set():
            with ExitStack() as held:
                for target in self._targets.values():
                    held.enter_context(target.lock)
                before = self._leaders()
                time.sleep(_QUIET_SECONDS)
                if before == self._leaders() and self._is_in_sync():
                    stack.push(held.pop_all())
                    return
            time.sleep(_QUIET_SECONDS)  # others have their turn
        raise LabError("the run was ended.")

    def _wait_until(self, else_: str, is_so: Callable[[], bool]) -> None:
        """Wait; where that takes long, lift the throttles. Raises LabError when it is of no use."""
        begun = time.monotonic()
        relieved = False
        while not is_so():
            waited = time.monotonic() - begun
            if self._abandoned.is_set() or waited > _PATIENCE_SECONDS:
                raise LabError(f"{else_} after {waited:.0f} s, though throttles were lifted, or the run was ended.")
            if waited > _RELIEF_SECONDS and not relieved:
                self.say(f"{else_} for {waited:.0f} s: throttles are lifted")
                self.reliefs += 1
                self.lift_throttles()
                relieved = True
            time.sleep(0.5)

    def _states(self) -> dict[Partition, PartitionState]:
        """All partitions; none while the cluster cannot tell."""
        try:
            return self._cluster.admin.partitions([*LIVE, MOVED])
        except ControlError:
            return {}

    def _leaders(self) -> dict[Partition, int]:
        return {partition: state.leader for partition, state in self._states().items()}

    def _is_in_sync(self) -> bool:
        states = self._states()
        return bool(states) and all(
            len(state.in_sync_replicas) >= (2 if partition.topic == MOVED else len(state.replicas))
            and state.leader >= 0
            for partition, state in states.items()
        )
