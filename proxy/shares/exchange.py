# SPDX-License-Identifier: Apache-2.0
"""Keeps this sidecar's shares of rates up to date: tells others their parts where it divides a rate, and answers them.

Others are asked only while somebody wants a part of a shared rate. One that does not answer is waited for by nobody.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Annotated, Any, Final, Protocol

import aiohttp
import msgspec
from msgspec import Meta

from weir.proxy.admin.exposition import Family, counter, gauge
from weir.proxy.admin.fleet import Target, body_of, scheme
from weir.proxy.admin.signatures import Sign, unsigned
from weir.proxy.config.address import Address
from weir.proxy.config.reader import ConfigError
from weir.proxy.log import EventLog, innermost_frame
from weir.proxy.slices import wait_at_most
from weir.quota.shares.share import Absence, Allotment, Share, Terms, Word, pace_of

PATH: Final = "/v1/shares"

MOST_BYTES = 1 << 20
"""The most bytes of a request or an answer."""

_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Name = Annotated[str, Meta(max_length=300)]


class ShareRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sidecar tells another one its parts of rates, by their names. `life` is this one's, of this process."""

    broker_id: _Count
    life: _Count = 0
    parts: dict[_Name, Allotment] = {}


class ShareAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a ShareRequest: a word on each rate, or why what was said of it counts for nothing."""

    broker_id: _Count
    seconds: float = 0
    """Always 0, which tells previews of weir that this one lives, and lends nothing."""
    words: dict[_Name, Word] = {}
    refused: dict[_Name, str] = {}


TICK_SECONDS: Final = 0.25
"""How often demands are measured, and shares put in force."""

ANSWER_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 10.0
"""How often the addresses of the others are looked up."""

MOST_RATES: Final = 1000

REFUSALS: Final = ("not_a_member", "other_terms", "unknown_rate", "not_shared", "other_broker", "malformed")
"""Why a request or an answer counts for nothing."""


class SharedRates(Protocol):
    """Who has rates that are shared. Rates go by a name that is the same in all sidecars that share one."""

    def shared(self) -> Mapping[str, Terms]:
        """Return the rates that are shared now, with the ids of the brokers whose sidecars share each."""

    def asked_for(self, name: str) -> bool:
        """Note that others want a part of a rate. Returns whether it is shared from now on although unused here."""

    def demand(self, name: str, share: float) -> float:
        """Return what this sidecar would use of a rate, while it may use `share`. Called at each tick."""

    def use(self, shares: Mapping[str, float]) -> None:
        """Put the shares in force that this sidecar has now. Called at each tick."""


@dataclass(eq=False)
class Exchange:
    """Shares the rates of `_users` with other sidecars.

    `_find_targets` tells where these are; `now` gives monotonic seconds. `sign` opens the others' admin HTTP, `tls` is
    what to ask them with; None: without TLS.
    """

    own_id: int
    _users: Sequence[SharedRates]
    _find_targets: Callable[[], Awaitable[Sequence[Target]]]
    _log: EventLog
    now: Callable[[], float] = time.monotonic
    sign: Sign = unsigned
    tls: Callable[[], ssl.SSLContext] | None = None
    shares: dict[str, Share] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(REFUSALS, 0)))
    asked: int = 0
    """How many requests were sent."""
    heard_at: dict[int, float] = field(default_factory=dict)
    """When each other sidecar asked or answered last."""
    under_way: dict[Address, asyncio.Task[None]] = field(default_factory=dict)
    """The requests that are not answered yet, one for each sidecar at most."""
    looking: asyncio.Task[None] | None = None
    """The look for the others' addresses, while it goes on."""
    _owners: dict[str, SharedRates] = field(default_factory=dict)
    _life: int = field(default_factory=lambda: secrets.randbits(62))
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _begins: bool = True
    _missed_at: dict[str | None, float] = field(default_factory=dict)
    """When this sidecar last did not share a rate, by its name; None: when the process began, and shared none."""
    _targets: Sequence[Target] = ()
    _looked_at: float = -LOOK_SECONDS
    _learnt: dict[Address, int] = field(default_factory=dict)
    _due: dict[Address, float] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _running: asyncio.Task[None] | None = None
    _session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        """Begin. It costs nothing while no rate is shared."""
        self._running = asyncio.create_task(self._run())

    def changed(self) -> None:
        """Look at once for rates that are shared now."""
        self._changed.set()

    async def close(self) -> None:
        """Cancel the requests that are under way, and ask nobody any more."""
        tasks = [task for task in (self._running, self.looking, *self.under_way.values()) if task is not None]
        self._running = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    # What others ask

    def answer(self, body: bytes) -> ShareAnswer:
        """Answer another sidecar; ConfigError for a body that is no such request."""
        try:
            request = msgspec.json.decode(body, type=ShareRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self.refused["malformed"] += 1
            raise ConfigError("body", f"is no request for a share: {error}") from error
        words, refused = {}, {}
        for name, part in request.parts.items():
            is_had = any(user.asked_for(name) for user in self._users)
            if is_had and name not in self.shares:
                self._take_terms()
            if (share := self.shares.get(name)) is None:
                # it may be had and not be shared yet, while nobody else is known
                refused[name] = "not_shared" if is_had else "unknown_rate"
                self._missed_at[name] = self.now()
                self._changed.set()
                continue
            word = share.answer(request.broker_id, request.life, part)
            if isinstance(word, str):
                refused[name] = word
            else:
                words[name] = word
                self.heard_at[request.broker_id] = self.now()
        self.refused.update(refused.values())
        self._use()
        return ShareAnswer(broker_id=self.own_id, words=words, refused=refused)

    # The rounds

    async def _run(self) -> None:
        while True:
            try:
                self.tick()
            except Exception as error:  # noqa: BLE001 - a bug in one tick may not end all later ones
                self._log.error("share_failed", error=repr(error), at=innermost_frame(error))
            # with nothing to share there are no ticks
            await wait_at_most(self._changed, TICK_SECONDS if self.shares else None)
            self._changed.clear()

    def tick(self) -> None:
        """Measure demands, ask those whose turn it is, and put the shares in force."""
        self._take_terms()
        for name, share in self.shares.items():
            share.demand = self._owners[name].demand(name, share.current())
        self._tell_all()
        self._use()

    def _use(self) -> None:
        for user in self._users:
            user.use({name: share.current() for name, share in self.shares.items() if self._owners[name] is user})

    def _take_terms(self) -> None:
        shared = {name: (user, terms) for user in self._users for name, terms in user.shared().items()}
        self._owners = {name: user for name, (user, _) in shared.items()}
        members = {one for _, terms in shared.values() for one in terms.members}
        self.heard_at = {one: at for one, at in self.heard_at.items() if one in members or not members}
        quiet_seconds, now = pace_of(len(members)).quiet_seconds, self.now()
        if self._begins:
            self._missed_at[None], self._begins = now, False
        self._missed_at |= dict.fromkeys(self.shares.keys() - shared.keys(), now)
        self._missed_at = {name: at for name, at in self._missed_at.items() if now - at < quiet_seconds}
        kept = {}
        for name, (_, terms) in shared.items():
            if (share := self.shares.get(name)) is None:
                at = max(self._missed_at.get(None, -quiet_seconds), self._missed_at.get(name, -quiet_seconds))
                share = Share(self.own_id, terms, self.now, self._numbers, at + quiet_seconds)
            share.terms = terms
            kept[name] = share
        self.shares = kept

    def _tell_all(self) -> None:
        """Tell others their parts. They learn them after this tick, which puts in force what is left here."""
        divided = {name: share for name, share in self.shares.items() if share.divides}
        if not divided:
            return
        now = self.now()
        if now - self._looked_at >= LOOK_SECONDS and self.looking is None:
            self._looked_at = now
            self.looking = asyncio.create_task(self._find_others())
        for admin, named in self._targets:
            if admin in self.under_way or self._due.get(admin, now) > now:
                continue
            other = self._learnt.get(admin) if named is None else named
            told = {
                name: share
                for name, share in islice(divided.items(), MOST_RATES)
                if other in share.terms.members - {self.own_id}
            }
            if other is None or told:
                self._due[admin] = now + max([share.pace.round_seconds for share in told.values()], default=1.0)
                parts = {name: share.part_for(other) for name, share in told.items()} if other is not None else {}
                self.under_way[admin] = asyncio.create_task(self._tell(other, admin, parts))

    async def _find_others(self) -> None:
        try:
            self._targets = list(await self._find_targets())
            known = {target.admin for target in self._targets}
            self._learnt = {admin: one for admin, one in self._learnt.items() if admin in known}
            self._due = {admin: due for admin, due in self._due.items() if admin in known}
        finally:
            self.looking = None
            self._changed.set()

    async def _tell(self, other: int | None, admin: Address, parts: Mapping[str, Allotment]) -> None:
        self.asked += 1
        asked_at = self.now()
        try:
            request = ShareRequest(broker_id=self.own_id, life=self._life, parts=dict(parts))
            answer = await self._send(admin, request, other)
            self._learnt[admin] = answer.broker_id
            if other is not None:
                self._take(other, answer, parts, asked_at)
        except aiohttp.ClientConnectorError as error:
            # one that was never heard may listen elsewhere
            if error.os_error.errno == errno.ECONNREFUSED and other in self.heard_at:
                self._miss(other, parts, "ended", asked_at)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            self.refused["malformed"] += 1
        except (aiohttp.ClientError, OSError):  # TimeoutError is one
            pass  # one that is silent may go on with its part
        finally:
            self.under_way.pop(admin, None)

    def _take(self, other: int, answer: ShareAnswer, parts: Mapping[str, Allotment], asked_at: float) -> None:
        if answer.broker_id != other:
            self.refused["other_broker"] += 1
            return
        self.heard_at[other] = self.now()
        for name, word in answer.words.items():
            if name in parts and (share := self.shares.get(name)) is not None:  # it may have gone meanwhile
                share.hear(other, parts[name].number, word)
                if word.demand > 0:
                    self._owners[name].asked_for(name)
        self._miss(other, [name for name in parts if answer.refused.get(name) == "unknown_rate"], "without", asked_at)

    def _miss(self, other: int, names: Collection[str], why: Absence, asked_at: float) -> None:
        for name in names:
            if (share := self.shares.get(name)) is not None:
                share.miss(other, why, asked_at)

    async def _send(self, admin: Address, request: ShareRequest, other: int | None) -> ShareAnswer:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        body: Any = msgspec.json.encode(request)
        url, signature = f"{scheme(self.tls)}://{admin}{PATH}", self.sign("POST", PATH, body, other)
        headers = {"Content-Type": "application/json", **signature}
        tls = True if self.tls is None else self.tls()
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False, ssl=tls) as response:
            if response.status != 200:
                raise ValueError(f"it answers with {response.status}")
            return msgspec.json.decode(await body_of(response, MOST_BYTES), type=ShareAnswer)


MOST_PEERS = 1000


def share_families(exchange: Exchange) -> Iterator[Family]:
    """Yield what is shared, and how the others are heard."""
    shares, now = list(exchange.shares.items()), exchange.now()
    used = {name: round(share.current(), 1) for name, share in shares}
    yield gauge(
        "weir_share_bytes_per_second", "What this sidecar may use now of a rate that several share.", used, "rate"
    )
    yield gauge(
        "weir_share_wanted_bytes_per_second",
        "What this sidecar would use of a rate that several share.",
        {name: round(share.demand, 1) for name, share in shares},
        "rate",
    )
    yield gauge(
        "weir_share_sidecars_without_rate",
        "Sidecars that do not have a rate which this one divides; their part goes to the others.",
        {name: len(share.without) for name, share in shares},
        "rate",
    )
    yield gauge(
        "weir_share_report_age_seconds",
        "Since when the sidecar of another broker, with which a rate is shared, was not heard.",
        {str(peer): round(now - at, 3) for peer, at in sorted(exchange.heard_at.items())[:MOST_PEERS]},
        "peer",
    )
    yield counter(
        "weir_share_reports_refused",
        "What other sidecars said of shared rates and counts for nothing, by reason.",
        exchange.refused,
        "reason",
    )
