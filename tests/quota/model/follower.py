# SPDX-License-Identifier: Apache-2.0
"""A replica fetcher as AbstractFetcherThread and FetchSessionHandler of Kafka behave."""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.fakes.kafka.fetcher_session import BACKOFF_SECONDS, FetcherSession
from tests.fakes.kafka.logs import Log
from tests.fakes.kafka.sessions import FIRST_WITH_SESSIONS, Key
from tests.fakes.kafka.wire import PARTITION_MAX_BYTES, Response, entry_packer, replica_fetch, request_topics
from tests.quota.model.chain import Chain
from tests.quota.model.world import World
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import ScannedTopic

_APPEND_SECONDS = 0.0003
_CONNECTING_SECONDS = 0.02


class Replica:
    """One partition that a follower keeps."""

    __slots__ = (
        "began_at",
        "caught_up_on",
        "error_seen_at",
        "high_watermark",
        "key",
        "leader_epoch",
        "log",
        "moved_at",
        "offset",
        "synced_at",
    )

    def __init__(self, log: Log, offset: int, now: float) -> None:
        self.key = log.key
        self.log = log
        self.offset = offset
        self.leader_epoch = 5
        self.high_watermark = -1  # the largest that it was sent of this leader epoch
        self.began_at = now
        self.moved_at = now  # when it last got records, or could not have got any
        self.synced_at = math.inf  # since when it has all that was there
        self.caught_up_on = 0  # bytes received while behind
        self.error_seen_at = -math.inf


class Fetcher(FetcherSession):
    """One fetcher thread: `replicas` in the order in which they are asked for."""

    is_honest = True
    reads = True

    def __init__(self, world: World, replica_id: int, version: int, replicas: list[Replica]) -> None:
        self.world = world
        self.replica_id = replica_id
        self.version = version
        self.replicas = {replica.key: replica for replica in replicas}
        self.order: dict[Key, None] = dict.fromkeys(self.replicas)  # those asked for now
        self.chain: Chain | None = None
        self.slowest = 0.0  # record of an in-sync partition, in seconds
        self.slowest_allowed = math.inf
        self.empty_answers: list[float] = []
        self.connect_anew: Callable[[], None] | None = None  # for who closes its connection after each answer
        self.waits: list[tuple[float, float]] = []  # when a producer's record came, and after how long
        self._changed: dict[Key, None] = {}
        self._correlation_id = 0
        self._is_asking = False
        self._asked_at = 0.0
        self._pack = entry_packer(version)

    def connect(self, chain: Chain) -> None:
        """A new connection."""
        self.chain = chain
        self.epoch = 0
        now = self.world.now
        for replica in self.replicas.values():
            replica.moved_at, replica.synced_at, replica.high_watermark = now, math.inf, -1
        self._is_asking = False
        chain.may_be_asked()
        self.ask(chain)

    def ask(self, chain: Chain) -> None:
        """Send the next fetch, where there is anything to ask for."""
        if chain is not self.chain or not chain.is_open or self._is_asking:
            return
        if self.order or (self.epoch > 0 and self.in_session):
            self._is_asking, self._asked_at = True, self.world.now
            chain.ask(self.request())

    def request(self) -> FetchRequest:
        """The next fetch: full, or what changed since the last."""
        if self.epoch == 0 and self.chain is not None and self.version >= FIRST_WITH_SESSIONS:
            self.chain.may_be_asked()
        keys, forgotten = self.next_fetch(self.order, self._changed)
        self._changed = {}
        self._correlation_id += 1
        replicas = [self.replicas[key] for key in keys]
        entries = [
            (one.key, self._pack(one.key[1], one.leader_epoch, one.offset, PARTITION_MAX_BYTES)) for one in replicas
        ]
        return replica_fetch(
            self.version,
            request_topics(entries),
            replica_id=self.replica_id,
            correlation_id=self._correlation_id,
            session_id=self.session_id,
            session_epoch=self.epoch,
            forgotten=forgotten,
        )

    # Answers

    def take(self, response: Response) -> None:
        """An answer arrived whole."""
        chain = self.chain
        assert chain is not None
        self._is_asking = False
        self.world.answers.append((self.world.now, self.replica_id, response.size))
        delay = _APPEND_SECONDS
        if self.take_head(response.head, response.topics):
            for topic in response.topics:
                self._take_topic(topic, response)
        if self.complaint:
            self.world.violate("full answers", f"replica {self.replica_id} {self.complaint}")
        self._watch_for_spinning(response)
        if not self.order:
            delay = BACKOFF_SECONDS
        if self.connect_anew is not None:
            chain.close()
            self.world.after(_CONNECTING_SECONDS, self.connect_anew)
            return
        self.world.after(delay, self.ask, chain)

    def _watch_for_spinning(self, response: Response) -> None:
        """Answers without records are few: followers ask again at once."""
        if response.bases:
            self.empty_answers.clear()
            return
        answers = self.empty_answers
        answers.append(self.world.now)
        if len(answers) > 200 and answers[-1] - answers[-201] < 1.0:
            self.world.violate("no spinning", f"replica {self.replica_id} gets 200 empty answers in a second")

    def _take_topic(self, topic: ScannedTopic, response: Response) -> None:
        now, name, order, replicas = self.world.now, topic.name, self.order, self.replicas
        for seen in topic.records:
            key = name, seen.partition
            if key not in order or replicas[key].began_at > self._asked_at:
                continue
            replica = replicas[key]
            if response.bases[key] != replica.offset:
                self.world.violate(
                    "same records",
                    f"{key} of replica {self.replica_id} is at {replica.offset} and got {response.bases[key]}",
                )
            if seen.batches:
                self._append(replica, seen.batches, seen.complete_bytes, now)
        for partition, error_code, high_watermark, _ in RESPONSE_ENTRY.iter_unpack(topic.headers):
            key = name, partition
            if key not in order or replicas[key].began_at > self._asked_at:
                continue
            replica = replicas[key]
            if error_code:
                replica.error_seen_at = now
                replica.synced_at, replica.moved_at = math.inf, now + BACKOFF_SECONDS
                del order[key]
                self.world.after(BACKOFF_SECONDS, self._return, key, self.chain)
            elif high_watermark != replica.high_watermark or replica.synced_at == math.inf:
                # A follower's own is never above the end of its log, so that is as far as a lower one takes back.
                if high_watermark < min(replica.high_watermark, replica.offset) or high_watermark < 0:
                    self.world.violate(
                        "high watermarks",
                        f"{key} of replica {self.replica_id} was sent {high_watermark} after {replica.high_watermark}",
                    )
                replica.high_watermark = high_watermark
                if replica.synced_at == math.inf and replica.offset >= replica.log.end:
                    replica.synced_at = now

    def _append(self, replica: Replica, batches: int, size: int, now: float) -> None:
        log = replica.log
        if replica.synced_at < math.inf:
            self.took(log.appended_at[replica.offset - log.first_live], replica)
        else:
            replica.caught_up_on += size
        if log.appended_at and replica.offset >= log.first_live:
            self.waits.append((now, now - log.appended_at[replica.offset - log.first_live]))
        replica.offset += batches
        replica.moved_at = now
        self.order[replica.key] = self.order.pop(replica.key)
        self._changed[replica.key] = None

    def took(self, appended_at: float, replica: Replica) -> None:
        """A record of an in-sync partition took, or waits, since then: how long of it is no one's but a sidecar's?"""
        seconds = self.world.now - appended_at
        if seconds <= self.slowest or self.chain is None:
            return
        seconds -= self.chain.excused(appended_at)
        self.slowest = max(self.slowest, seconds)
        if seconds > self.slowest_allowed:
            self.world.violate(
                "in sync", f"{replica.key} of replica {self.replica_id} waits {seconds:.2f} s for a record"
            )

    # What happens to it

    def _return(self, key: Key, chain: Chain | None) -> None:
        replica = self.replicas.get(key)
        if replica is not None and key not in self.order:
            self.order[key] = None
            self._changed[key] = None
            replica.moved_at = self.world.now
            if self.chain is not None:
                self.chain.may_be_asked()
                self.ask(self.chain)

    def delete(self, key: Key) -> None:
        """The partition is not this follower's any more."""
        self.replicas.pop(key, None)
        self.order.pop(key, None)

    def add(self, log: Log) -> None:
        """The partition is this follower's from now on."""
        self.replicas[log.key] = Replica(log, 0, self.world.now)
        if self.chain is not None:
            for hop in self.chain.hops:
                hop.told.forget(log.key)
        self._return(log.key, self.chain)

    def elect(self, key: Key, back: int) -> None:
        """A leader epoch begins; below 0.11 a follower then truncates to its own high watermark."""
        replica = self.replicas.get(key)
        if replica is None:
            return
        now = self.world.now
        if self.chain is not None:
            self.chain.may_be_asked()
            for hop in self.chain.hops:
                hop.told.elected(key, replica.offset, now)
        replica.leader_epoch += 1
        replica.began_at = now
        replica.offset = max(0, replica.offset - back)
        replica.high_watermark, replica.synced_at, replica.moved_at = -1, math.inf, now
        self._changed[key] = None
        if key in self.order:  # what is on its way to it is of another epoch, and dropped
            del self.order[key]
            self.world.after(BACKOFF_SECONDS, self._return, key, self.chain)
