# SPDX-License-Identifier: Apache-2.0
"""The poll of what throttles need of the cluster, each second: Kafka's own throttle, and reassignments.

Three things are read of Kafka's throttle: the rates of this sidecar's broker, which only that broker tells; what is
being reassigned, which in ZooKeeper mode only the controller tells; and the topics' lists of throttled replicas. A
change of the rates or of what is reassigned has all lists read at once. Otherwise the lists that are known and those of
moving topics are read each second, and the others LISTS_PER_ROUND at a time. A topic moves where it is reassigned, or
where its replicas are behind while there is a rate.

Import it only where `[cluster]` is configured, as aiokafka costs memory.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from weir.proxy.cluster.channel import NotAnswered, NotSupported
from weir.proxy.cluster.client import ClusterClient, Outage, Poll
from weir.proxy.cluster.kafka_throttle import lists_of, moves_of, rates_of
from weir.proxy.cluster.metadata import every_topic
from weir.proxy.cluster.poll_stats import PollStats
from weir.proxy.cluster.view import ToldMoves, Wants
from weir.proxy.log import EventLog, innermost_frame
from weir.proxy.throttle.followed import FollowedThrottle, Moves

ROUND_SECONDS: Final = 1.0
LISTS_PER_ROUND: Final = 500
"""How many topics' lists are read in a second, while the broker has a rate."""
IDLE_LISTS_PER_ROUND: Final = 100
"""How many while it has none."""
TOPICS_SECONDS: Final = 10.0
"""How often all topics' names are asked for."""
LISTS_PER_QUESTION: Final = 100


class ThrottlePoll(Poll):
    """Reads what throttles need beside broker `broker_id`. While brokers do not answer, what was read last stays.

    `part` of the rates of Kafka's throttle is followed; None follows none of it.
    """

    what = "throttles"

    def __init__(self, broker_id: int, part: float | None, wants: Wants, log: EventLog, stats: PollStats) -> None:
        self._broker_id = broker_id
        self._follows_throttle = part is not None
        self._followed = FollowedThrottle(1.0 if part is None else part)
        self._wants = wants
        self._log = log
        effect = "the throttle that was read last stays in force"
        self._outage = Outage(log, "kafka_throttle_not_read", "kafka_throttle_read_again", effect)
        self._at = -math.inf
        self._topics: set[str] = set()
        self._topics_read_at = -math.inf
        self._turn: deque[str] = deque()  # topics whose lists are read next
        self._wants_all_lists = False
        self._told_moves: ToldMoves | None = None
        self._was_read = False  # whether Kafka's throttle was read once
        self._wrong: dict[str, str] = {}
        self._has_said_no_moves = False
        if self._follows_throttle:
            stats.known(self.what)

    def due_at(self, client: ClusterClient) -> float:
        """Return when to read next (clock seconds); inf while nobody wants to know."""
        return self._at if self._follows_throttle or self._wants.moves() else math.inf

    async def ask(self, client: ClusterClient) -> None:
        """Read once, and publish what was read. What fails is logged, and read again in the next round."""
        begin, before, result = client.clock(), client.connections.moved, "failed"
        try:
            await self._read(client)
        except Exception as error:  # noqa: BLE001 - a bug may not end it for good
            self._was_read |= isinstance(error, NotSupported)  # nothing will ever be
            is_bug = not isinstance(error, (NotAnswered, NotSupported))
            self._outage.begin(self._broker_id, f"{error!r} at {innermost_frame(error)}" if is_bug else str(error))
            self._topics_read_at = -math.inf  # a broker may have moved, and another one be the controller
        else:
            result = "ok"
            if self._follows_throttle:
                client.stats.throttle_read_at = client.clock()
            self._outage.end(self._broker_id)
        now = client.clock()
        self._at = max(begin + ROUND_SECONDS, now + ROUND_SECONDS / 2)
        client.stats.count(self.what, result, now - begin, client.connections.moved - before)
        throttle = self._followed.layer() if self._was_read else None
        told = self._followed.told if self._followed.has_rates else None
        client.publish(replace(client.view, moves=self._told_moves, told_lists=told, throttle=throttle))

    async def _read(self, client: ClusterClient) -> None:
        followed, now = self._followed, client.clock
        if now() - self._topics_read_at >= TOPICS_SECONDS:
            await self._read_topics(client)
        if not self._follows_throttle:
            await self._take_moves(client)
            return
        rates = await client.ask_broker(self._broker_id, partial(rates_of, broker_id=self._broker_id))
        if followed.take_rates(rates, now()):
            self._wants_all_lists = True  # until all are read: what fails in between may not make it forget that
        failure: NotAnswered | None = None
        try:
            if await self._take_moves(client):
                self._wants_all_lists = True
        except NotAnswered as error:  # the controller may be away, and the broker not
            failure = error
        if self._wants_all_lists:
            await self._read_topics(client)
        if self._wants_all_lists or not self._turn:
            self._turn = deque(sorted(self._topics))  # all of them come up one after the other
        # without a rate no list throttles anything, and a rate that is set has all of them read
        each_round = LISTS_PER_ROUND if followed.has_rates else IDLE_LISTS_PER_ROUND
        count = len(self._turn) if self._wants_all_lists else min(each_round, len(self._turn))
        wrong: dict[str, str] = {}
        behind = self._wants.topics_behind() if followed.has_rates else frozenset[str]()
        due = sorted({*followed.topics, *(self._turn.popleft() for _ in range(count)), *behind})
        for start in range(0, len(due), LISTS_PER_QUESTION):
            await client.ask_servers()
            some = due[start : start + LISTS_PER_QUESTION]
            lists, wrong_lists = await client.ask_broker(self._broker_id, partial(lists_of, topics=some))
            followed.take_lists(lists)
            wrong |= wrong_lists
        # a server that has just started may know no topic yet
        self._wants_all_lists = followed.has_rates and not self._topics
        self._was_read |= not self._wants_all_lists
        self._log_wrong(wrong, due)
        if failure is not None:
            raise failure

    async def _read_topics(self, client: ClusterClient) -> None:
        """Ask any server where the brokers are, and which topics there are."""
        answer, self._topics = await client.connections.ask_any(every_topic)
        client.learn_brokers(answer)
        self._topics_read_at = client.clock()
        self._followed.forget_topics(self._topics, client.clock())

    async def _take_moves(self, client: ClusterClient) -> bool:
        """Ask for what is being reassigned, and take it. Returns whether that has changed."""
        asked_at, controller = client.clock(), client.view.controller
        asked = controller if controller in client.view.brokers else self._broker_id
        moves: Moves = {}
        try:
            moves = await client.ask_broker(asked, moves_of)
        except NotSupported:
            if not self._has_said_no_moves:
                self._has_said_no_moves = True
                effect = (
                    "a list that is removed in mid-move is followed at once, and replicas being added count as recovery"
                )
                self._log.info("reassignments_not_listed", reason="the brokers are older than Kafka 2.4", effect=effect)
        changed = self._followed.take_moves(moves, client.clock())
        self._told_moves = ToldMoves(self._followed.moves, asked_at)
        return changed

    def _log_wrong(self, wrong: dict[str, str], read: Sequence[str]) -> None:
        """Log each list that cannot be read, once as long as the reason stays the same. `read` are all that were."""
        effect = "its lists that were read last stay in force; where none were, all its replicas count as listed"
        for topic, reason in sorted(wrong.items() - self._wrong.items()):
            self._log.fault("kafka_throttle_list_refused", peer=topic, error=reason, effect=effect)
        left = self._wrong.keys() & self._topics - {*read}
        self._wrong = {topic: self._wrong[topic] for topic in left} | wrong
