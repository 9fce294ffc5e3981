"""Learns the names of topic ids from the cluster's metadata: throttled topics in advance, others when they are seen.

By the way it asks whether replicas that are silent are assigned at all (quota.unassigned).

Nothing on the data path waits for it: after a moment (quota.topic_names.AWAIT_SECONDS) an id without a name is not
throttled until its name is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from protocol.errors import ProtocolError
from proxy.address import Address
from proxy.config import Config
from proxy.log import EventLog, innermost_frame, os_error_reason
from proxy.metadata import MetadataConnection, NoTopicIds
from quota.topic_names import TopicNames, printed_id
from quota.unassigned import UnassignedReplicas

_Answer = TypeVar("_Answer")

QUESTION_TIMEOUT_SECONDS = 5.0
TOPICS_PER_QUESTION = 1000
DEFAULT_POLL_SECONDS = 5.0  # as [cluster] poll_seconds

FIRST_RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 10.0
MAX_IDLE_RETRY_SECONDS = 60.0  # while no fetch has an unknown id: perhaps the servers speak TLS, and none ever will
_SHORTEST_PAUSE_SECONDS = 0.05  # between questions that nobody woke it for
_MOST_SHOWN = 5  # ids in one log line


class TopicIdResolver:
    """Asks `servers`, one after the other until one answers, and puts what they know into `names`.

    The topics that `topics()` names and those of `unassigned` are asked for every `poll_seconds`, the ids that `names`
    wants at once. `changed` is called when there were new names. `clock` gives monotonic seconds.
    """

    def __init__(
        self,
        names: TopicNames,
        servers: Sequence[Address],
        topics: Callable[[], Collection[str]],
        changed: Callable[[], None],
        unassigned: UnassignedReplicas,
        log: EventLog,
        poll_seconds: float = DEFAULT_POLL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = names
        self._servers = deque(servers)
        self._topics = topics
        self._changed = changed
        self._unassigned = unassigned
        self._log = log
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._poll_at = clock()
        self._has_ids = True
        self._retry_seconds = 0.0  # 0 unless the last question failed
        self._failing = False  # until one is answered; there may be nothing to ask for long
        self._connection: MetadataConnection | None = None
        self._untold: dict[tuple[str, str], int] = {}  # by event and side: how often, when it was logged last
        self._wake = asyncio.Event()
        names.on_miss = self._wake.set

    def wake(self) -> None:
        """Ask for the throttled topics now: other ones are throttled."""
        self._poll_at = self._clock()
        self._wake.set()

    def unasked(self) -> UnassignedReplicas | None:
        """Return the replicas that somebody else is to ask for; None while the servers have topic ids."""
        return None if self._has_ids else self._unassigned

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                self._wake.clear()
                try:
                    await self.resolve()
                except Exception as error:  # noqa: BLE001 - a bug may not end it for good
                    self._log.error("topic_ids_failed", error=repr(error), at=innermost_frame(error))
                    self._disconnect()
                    self._back_off()
                await self._pause()
        finally:
            self._disconnect()

    async def resolve(self) -> None:
        """Ask once for what is due; what fails is logged, and asked again."""
        self._log_untold()
        wanted = self._names.wanted()
        by_name: list[bytes] = []
        silent: list[bytes] = []
        if self._has_ids and self._clock() >= self._poll_at:
            by_name = sorted(topic.encode() for topic in self._topics())
            self._poll_at = self._clock() + self._poll_seconds
            for _ in self._unassigned.look():
                await asyncio.sleep(0)
            silent = self._unassigned.topics
        try:
            for topic_ids, names in _questions(wanted, by_name):
                self._learn(await self._names_of(names, topic_ids), topic_ids)
            if silent:
                await self._forget_unassigned(silent)
        except NoTopicIds:
            self._has_ids = False  # asked again when an id is seen: then some broker has them
            self._unknown(wanted, "the broker is older than topic ids")
        except ConnectionError as error:
            self._poll_at = self._clock()
            self._back_off()
            self._log.fault(
                "topic_ids_not_asked",
                peer=self._peers(),
                error=error,
                effect="new ids are throttled for the first second only, and what was moved away counts as lag",
            )
            return
        self._retry_seconds = 0.0
        if self._failing and (wanted or by_name or silent):
            self._failing = False
            self._log.info("topic_ids_recovered", peer=self._servers[0])

    async def _pause(self) -> None:
        seconds = self._poll_seconds
        if self._retry_seconds:
            await asyncio.sleep(min(self._retry_seconds, MAX_RETRY_SECONDS))  # whatever is missed meanwhile
            seconds = self._retry_seconds - MAX_RETRY_SECONDS
            if seconds <= 0 or self._names.unknown_count:
                return
        else:
            due = self._names.next_wanted_at() - self._clock()
            seconds = min(max(due, _SHORTEST_PAUSE_SECONDS), seconds)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    def _back_off(self) -> None:
        self._failing = True
        self._retry_seconds = min(max(2 * self._retry_seconds, FIRST_RETRY_SECONDS), MAX_IDLE_RETRY_SECONDS)

    def _learn(self, found: dict[bytes, bytes], topic_ids: Collection[bytes]) -> None:
        if not self._has_ids:
            self._has_ids = True
            self.wake()
        self._unknown([topic_id for topic_id in topic_ids if topic_id not in found], "the cluster does not know it")
        if self._names.learn(found):
            self._changed()

    def _unknown(self, topic_ids: Collection[bytes], reason: str) -> None:
        if topic_ids:
            self._names.unknown(topic_ids)
            self._log.fault(
                "topic_id_unknown",
                peer=self._servers[0],
                ids=",".join(_shown(topic_ids)),
                count=len(topic_ids),
                reason=reason,
                effect="throttled for the first second only",
            )

    async def _names_of(self, names: Collection[bytes], topic_ids: Collection[bytes]) -> dict[bytes, bytes]:
        return await self._ask(lambda connection: connection.topic_names(names, topic_ids))

    async def _forget_unassigned(self, topics: Collection[bytes]) -> None:
        forgotten = 0
        for count in self._unassigned.take(await self._ask(lambda connection: connection.assignments(topics))):
            forgotten += count
            await asyncio.sleep(0)
        if forgotten:
            self._log.info("replicas_not_assigned", partitions=forgotten, effect="their lag is forgotten")

    def _log_untold(self) -> None:
        """Say so where there was no room for lag, or where ids are no brokers'."""
        for throttle in self._unassigned.throttles:
            for event, count, effect in (
                ("lag_evicted", throttle.lag.evicted, "the lag of some replicas is not told"),
                ("replica_ids_refused", throttle.brokers.refused, "what fetches with them has no series of its own"),
            ):
                if count != self._untold.get((event, throttle.side), 0):
                    self._untold[event, throttle.side] = count
                    self._log.fault(event, peer=throttle.side, count=count, effect=effect)

    async def _ask(self, question: Callable[[MetadataConnection], Awaitable[_Answer]]) -> _Answer:
        """Ask one server after the other: the one that answered comes first next time.

        Raises ConnectionError, which names every server, or NoTopicIds when one could only say that.
        """
        failures = []
        without_ids = False
        for _ in range(len(self._servers)):
            try:
                async with asyncio.timeout(QUESTION_TIMEOUT_SECONDS):
                    return await question(await self._connected())
            except NoTopicIds:
                without_ids = True
            except TimeoutError:
                failures.append(f"{self._servers[0]}: no answer within {QUESTION_TIMEOUT_SECONDS:g} s")
            except OSError as error:
                failures.append(f"{self._servers[0]}: {os_error_reason(error) or type(error).__name__}")
            except EOFError:
                failures.append(f"{self._servers[0]}: closed the connection without an answer")
            except ProtocolError as error:
                failures.append(f"{self._servers[0]}: {error}")
            self._disconnect()
            self._servers.rotate(-1)
        if without_ids:
            raise NoTopicIds
        raise ConnectionError("; ".join(failures))

    async def _connected(self) -> MetadataConnection:
        if self._connection is None or self._connection.closed:
            self._disconnect()
            self._connection = await MetadataConnection.open(self._servers[0])
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _peers(self) -> str:
        return ",".join(sorted(map(str, self._servers)))


def metadata_servers(config: Config) -> tuple[Address, ...]:
    """Return whom to ask: the cluster's bootstrap servers, else the broker beside this sidecar, else its peers."""
    if config.cluster is not None:
        servers: Iterable[Address] = config.cluster.bootstrap_servers
    else:
        servers = (route.upstream for route in config.ingress or config.egress)
    return tuple(dict.fromkeys(servers))


def _questions(topic_ids: list[bytes], names: list[bytes]) -> Iterable[tuple[list[bytes], list[bytes]]]:
    """Yield shares of TOPICS_PER_QUESTION, of ids first: they are being fetched."""
    for start in range(0, len(topic_ids), TOPICS_PER_QUESTION):
        yield topic_ids[start : start + TOPICS_PER_QUESTION], []
    for start in range(0, len(names), TOPICS_PER_QUESTION):
        yield [], names[start : start + TOPICS_PER_QUESTION]


def _shown(topic_ids: Iterable[bytes]) -> list[str]:
    return [printed_id(topic_id) for topic_id in islice(topic_ids, _MOST_SHOWN)]
