"""Follows what throttles need of the cluster, each second: Kafka's own throttle, reassignments, and racks.

Three things are read of Kafka's throttle: the rates of this sidecar's broker, which only that broker tells; what is
being reassigned, which in ZooKeeper mode only the controller tells; and the topics' lists of throttled replicas. A
change of the rates or of what is reassigned has all lists read at once. Otherwise the lists that are known and those of
moving topics are read each second, and the others LISTS_PER_ROUND at a time. A topic moves where it is reassigned, or
where its replicas are behind while there is a rate.

Import it only where `[cluster]` is configured, as aiokafka costs memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from weir.proxy.cluster import kafka_throttle, servers
from weir.proxy.cluster.followers import Followers
from weir.proxy.cluster.kafka_channel import KafkaChannel
from weir.proxy.cluster.kafka_throttle import ClusterTold, NotSupported
from weir.proxy.cluster.poll_stats import PollStats
from weir.proxy.cluster.servers import FAILURES, Servers, reason_of
from weir.proxy.config.address import Address
from weir.proxy.log import EventLog, innermost_frame
from weir.quota.followed_throttle import FollowedThrottle, Moves
from weir.quota.layers import Layer

ROUND_SECONDS: Final = 1.0
LISTS_PER_ROUND: Final = 500
IDLE_LISTS_PER_ROUND: Final = 100
"""The same while the broker has no rate."""
TOPICS_SECONDS: Final = 10.0
"""How often all topics' names are asked for."""
LISTS_PER_QUESTION: Final = 100

WHAT: Final = "throttles"
"""What these questions are called in the metrics."""

_Answer = TypeVar("_Answer")


class ThrottleFollower:
    """Follows the cluster of broker `broker_id` from `start` to `close`. `clock` gives monotonic seconds.

    `bootstrap` servers are asked where the brokers are. `part` of the rates of Kafka's throttle is followed; None
    follows none of it. While the cluster does not answer, what was read last stays in force.
    """

    def __init__(
        self,
        broker_id: int,
        part: float | None,
        bootstrap: Sequence[Address],
        followers: Followers,
        log: EventLog,
        stats: PollStats,
        clock: Callable[[], float],
        open_channel: Callable[[Address], Awaitable[KafkaChannel]] = KafkaChannel.open,
    ) -> None:
        self._broker_id = broker_id
        self._follows_throttle = part is not None
        self._followed = FollowedThrottle(1.0 if part is None else part)
        self._servers = Servers(bootstrap)
        self._cluster = ClusterTold({}, {}, -1, set())
        self._told_at = -math.inf
        self._followers = followers
        self._log = log
        self._stats = stats
        self._clock = clock
        self._open_channel = open_channel
        self._channels: dict[Address, KafkaChannel] = {}
        self._moved_before = 0  # bytes of channels that were closed
        self._layer = Layer("kafka")
        self._moves_told: Moves | None = None
        self._racks_told: Mapping[int, str | None] | None = None
        self._turn: deque[str] = deque()  # topics whose lists are read next
        self._wants_all_lists = False
        self._wrong: dict[str, str] = {}
        self._is_failing = False
        self._has_said_no_moves = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        if self._follows_throttle:
            stats.known(WHAT)

    def start(self) -> None:
        """Begin to follow."""
        self._task = asyncio.create_task(self._run())

    def wants_changed(self) -> None:
        """Look again whether anybody wants to know."""
        self._wake.set()

    async def close(self) -> None:
        """Stop following. What is in force stays."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._disconnect()

    async def round(self) -> None:
        """Read once, and put what has changed in force. What fails is logged, and read again in the next round."""
        begin, before = self._clock(), self._moved()
        try:
            await self._read()
        except FAILURES as error:
            self._disconnect()
            self._failed(reason_of(error, servers.QUESTION_TIMEOUT_SECONDS), begin, before)
        except NotSupported as error:
            self._failed(f"the broker has no version of {error} that is known here", begin, before)
        except Exception as error:  # noqa: BLE001 - a bug may not end it for good
            self._disconnect()
            self._failed(f"{error!r} at {innermost_frame(error)}", begin, before)
        else:
            self._stats.count(WHAT, "ok", self._clock() - begin, self._moved() - before)
            if self._follows_throttle:
                self._stats.throttles_told_at = self._clock()
            if self._is_failing:
                self._is_failing = False
                self._log.info("kafka_throttle_read_again", peer=self._broker_id)
        for tell in (self._tell_moves, self._tell_racks, self._tell_throttle):
            try:
                tell()
            except Exception as error:  # noqa: BLE001 - see above; it is told again in the next round
                self._log.fault("kafka_throttle_not_taken", peer=innermost_frame(error), error=repr(error))

    def _tell_moves(self) -> None:
        moves = self._followed.moves
        if self._followed.knows_moves and moves != self._moves_told:
            self._followers.moves(moves)
            self._moves_told = moves

    def _tell_racks(self) -> None:
        racks = self._cluster.racks
        if racks and racks != self._racks_told:
            self._followers.racks(racks)
            self._racks_told = racks

    def _tell_throttle(self) -> None:
        layer = self._followed.layer()
        if layer is not self._layer and layer != self._layer:
            self._followers.throttle(layer)
            self._layer = layer

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            if not self._follows_throttle and not self._followers.wants_facts():
                await self._wake.wait()
                continue
            begin = self._clock()
            await self.round()
            await asyncio.sleep(max(ROUND_SECONDS - (self._clock() - begin), ROUND_SECONDS / 2))

    async def _read(self) -> None:
        followed, now = self._followed, self._clock
        if now() - self._told_at >= TOPICS_SECONDS:
            await self._look_around()
        if not self._follows_throttle:
            followed.take_moves(await self._moves(), now())
            return
        broker = await self._channel_to(self._broker_id)
        if followed.take_rates(await self._ask(kafka_throttle.rates_of(broker, self._broker_id)), now()):
            self._wants_all_lists = True  # until all are read: what fails in between may not make it forget that
        failure: Exception | None = None
        try:
            if followed.take_moves(await self._moves(), now()):
                self._wants_all_lists = True
        except FAILURES as error:  # the controller may be away, and the broker not
            failure = error
        if self._wants_all_lists:
            await self._look_around()
            self._turn = deque(sorted(self._cluster.topics))
        # without a rate no list throttles anything, and a rate that is set has all of them read
        each_round = LISTS_PER_ROUND if followed.has_rates else IDLE_LISTS_PER_ROUND
        count = len(self._turn) if self._wants_all_lists else each_round
        wrong: dict[str, str] = {}
        behind = self._followers.topics_behind() if followed.has_rates else frozenset[str]()
        due = sorted({*followed.topics, *self._next(count), *(behind & self._cluster.topics)})
        for start in range(0, len(due), LISTS_PER_QUESTION):
            some = due[start : start + LISTS_PER_QUESTION]
            lists, wrong_lists = await self._ask(kafka_throttle.lists_of(broker, some))
            followed.take_lists(lists)
            wrong |= wrong_lists
        self._wants_all_lists = False
        self._tell_wrong(wrong, due)
        if failure is not None:
            raise failure

    async def _look_around(self) -> None:
        """Ask where the brokers are, and which topics there are: one server after the other, until one answers."""
        self._cluster = await self._servers.ask(self._cluster_of, self._close)
        self._told_at = self._clock()
        self._followed.forget_topics(self._cluster.topics)

    async def _cluster_of(self, server: Address) -> ClusterTold:
        return await kafka_throttle.cluster_of(await self._channel(server))

    async def _moves(self) -> Moves:
        controller = self._cluster.controller
        asked = controller if controller in self._cluster.brokers else self._broker_id
        try:
            return await self._ask(kafka_throttle.moves_of(await self._channel_to(asked)))
        except NotSupported:
            if not self._has_said_no_moves:
                self._has_said_no_moves = True
                effect = (
                    "a list that is removed in mid-move is followed at once, and replicas being added count as recovery"
                )
                self._log.info("reassignments_not_listed", reason="the brokers are older than Kafka 2.4", effect=effect)
            return {}

    def _next(self, count: int) -> set[str]:
        """Return the topics whose turn it is: all of them come up one after the other."""
        if not self._turn:
            self._turn = deque(sorted(self._cluster.topics))
        return {self._turn.popleft() for _ in range(min(count, len(self._turn)))}

    async def _channel_to(self, broker_id: int) -> KafkaChannel:
        address = self._cluster.brokers.get(broker_id)
        if address is None:
            raise ConnectionError(f"broker {broker_id} is not among the brokers that the cluster names")
        return await self._channel(address)

    async def _channel(self, address: Address) -> KafkaChannel:
        channel = self._channels.get(address)
        if channel is None or channel.closed:
            self._close(address)
            channel = self._channels[address] = await self._ask(self._open_channel(address))
        return channel

    async def _ask(self, answer: Awaitable[_Answer]) -> _Answer:
        async with asyncio.timeout(servers.QUESTION_TIMEOUT_SECONDS):
            return await answer

    def _failed(self, reason: str, begin: float, before: int) -> None:
        self._is_failing = True
        self._stats.count(WHAT, "failed", self._clock() - begin, self._moved() - before)
        effect = "the throttle that was read last stays in force"
        self._log.fault("kafka_throttle_not_read", peer=self._broker_id, error=reason, effect=effect)

    def _tell_wrong(self, wrong: dict[str, str], read: Sequence[str]) -> None:
        """Log each list that cannot be read, once as long as the reason stays the same. `read` are all that were."""
        for topic, reason in wrong.items():
            if self._wrong.get(topic) != reason:
                effect = "its lists that were read last stay in force"
                self._log.fault("kafka_throttle_list_refused", peer=topic, error=reason, effect=effect)
        for topic in self._wrong.keys() & {*read, *(self._wrong.keys() - self._cluster.topics)}:
            del self._wrong[topic]
        self._wrong |= wrong

    def _moved(self) -> int:
        return self._moved_before + sum(channel.moved for channel in self._channels.values())

    def _close(self, address: Address) -> None:
        """Close the connection to a server, if there is one."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            self._moved_before += channel.moved
            channel.close()

    def _disconnect(self) -> None:
        for address in list(self._channels):
            self._close(address)
        self._told_at = -math.inf  # a broker may have moved, and another one be the controller
