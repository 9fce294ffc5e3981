"""Keeps this sidecar's shares of rates up to date: asks the others for loans, and answers them.

Others are asked only while somebody wants a part of a shared rate. One that does not answer is waited for by nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import aiohttp
import msgspec

from weir.proxy.admin.fleet import Target, bearer, scheme
from weir.proxy.config.address import Address
from weir.proxy.config.reader import ConfigError
from weir.proxy.log import EventLog, innermost_frame
from weir.proxy.shares.messages import MOST_BYTES, ReportMessage, ShareAnswer, ShareRequest
from weir.quota.shares.roll import Roll
from weir.quota.shares.share import Report, Share, Terms

TICK_SECONDS: Final = 0.25
"""How often demands are measured, and shares put in force."""

ANSWER_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 10.0
"""How often the addresses of the others are looked up."""

MOST_RATES: Final = 1000

REFUSALS: Final = (
    *("not_a_member", "other_terms", "absurd", "late"),
    *("unknown_rate", "not_shared", "other_broker", "malformed"),
)
"""Why a report or an answer counts for nothing."""


class SharedRates(Protocol):
    """Who has rates that are shared. Rates go by a name that is the same in all sidecars that share one."""

    def shared(self) -> Mapping[str, Terms]:
        """Return the rates that are shared now, with the ids of the brokers whose sidecars share each."""

    def asked_for(self, name: str) -> bool:
        """Note that another sidecar asks for a rate. Returns whether it is shared from now on although unused here."""

    def demand(self, name: str, share: float) -> float:
        """Return what this sidecar would use of a rate, while it may use `share`. Called at each tick."""

    def use(self, shares: Mapping[str, float]) -> None:
        """Put the shares in force that this sidecar has now. Called at each tick."""


class Exchange:
    """Shares the rates of `users` with other sidecars.

    `targets` tells where these are; `clock` gives monotonic seconds. `first_number` is larger than in any earlier life
    of this sidecar: requests are numbered from there on. `token` opens the others' admin HTTP, `tls`
    is what to ask them with; None: without TLS.
    """

    def __init__(
        self,
        own_id: int,
        users: Sequence[SharedRates],
        targets: Callable[[], Awaitable[Sequence[Target]]],
        log: EventLog,
        clock: Callable[[], float] = time.monotonic,
        first_number: int | None = None,
        token: Callable[[], str | None] = lambda: None,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self.own_id = own_id
        self.roll = Roll(own_id, clock)
        self.shares: dict[str, Share] = {}
        self.refused: Counter[str] = Counter(dict.fromkeys(REFUSALS, 0))
        self.asked = 0
        """How many requests were sent."""
        self._users = users
        self._owners: dict[str, SharedRates] = {}
        self._find_targets = targets
        self._log = log
        self._clock = clock
        self._token = token
        self._tls = tls
        self._number = int(time.time() * 1000) if first_number is None else first_number
        self._targets: Sequence[Target] = ()
        self._looked_at = -LOOK_SECONDS
        self._learnt: dict[Address, int] = {}
        self._due: dict[Address, float] = {}
        self._changed = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.under_way: dict[Address, asyncio.Task[None]] = {}
        """The requests that are not answered yet, one for each sidecar at most."""
        self.looking: asyncio.Task[None] | None = None
        """The look for the others' addresses, while it goes on."""
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        """Begin. It costs nothing while no rate is shared."""
        self._running = asyncio.create_task(self._run())

    def changed(self) -> None:
        """Look at once for rates that are shared now."""
        self._changed.set()

    async def close(self) -> None:
        """Ask nobody any more."""
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
        loans, refused = {}, {}
        is_known = False
        for name, said in request.rates.items():
            is_had = any(user.asked_for(name) for user in self._users)
            if is_had and name not in self.shares:
                self._take_terms()
                self._changed.set()
            share = self.shares.get(name)
            if share is None:  # it may be had and not be shared yet, while nobody else is known
                refused[name] = "not_shared" if is_had else "unknown_rate"
                continue
            report = Report(said.rate, said.members, said.demand, said.taken, said.borrowed)
            size, refusal = share.lend(request.broker_id, request.number, report)
            if refusal is None:
                loans[name] = size
                is_known = True
            else:
                refused[name] = refusal
        if is_known:
            self.roll.hear(request.broker_id, request.misses)
        self.refused.update(refused.values())
        self._use()  # at once: the one that asked may use it as soon as it has the answer
        return ShareAnswer(
            broker_id=self.own_id,
            seconds=self.roll.pace.loan_seconds,
            misses=sorted(self.roll.missing(self._members())),
            loans=loans,
            refused=refused,
        )

    # The rounds

    async def _run(self) -> None:
        while True:
            try:
                self.tick()
            except Exception as error:  # noqa: BLE001 - a bug in one tick may not end all later ones
                self._log.error("share_failed", error=repr(error), at=innermost_frame(error))
            # with nothing to share there are no ticks
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS if self.shares else None):
                    await self._changed.wait()
            self._changed.clear()

    def tick(self) -> None:
        """Measure demands, ask those whose turn it is, and put the shares in force."""
        self._take_terms()
        for name, share in self.shares.items():
            share.demand = self._owners[name].demand(name, share.current())
        if any(share.is_asked_for for share in self.shares.values()):
            self.roll.begin()
            self._ask_all()
        else:
            self.roll.end()
        self._use()

    def _use(self) -> None:
        for user in self._users:
            user.use({name: share.current() for name, share in self.shares.items() if self._owners[name] is user})

    def _take_terms(self) -> None:
        shared = {name: (user, terms) for user in self._users for name, terms in user.shared().items()}
        self._owners = {name: user for name, (user, _) in shared.items()}
        members = {one for _, terms in shared.values() for one in terms.members} | {self.own_id}
        self.roll.set_members(members)
        kept = {}
        for name, (_, terms) in shared.items():
            share = self.shares.get(name)
            if share is None:
                share = Share(terms, self.roll, self._clock)
            elif share.terms != terms:
                share.set_terms(terms)
            kept[name] = share
        self.shares = kept

    def _members(self) -> set[int]:
        return {one for share in self.shares.values() for one in share.terms.members}

    def _ask_all(self) -> None:
        now = self._clock()
        if now - self._looked_at >= LOOK_SECONDS and self.looking is None:
            self._looked_at = now
            self.looking = asyncio.create_task(self._look())
        for target in self._targets:
            broker_id = self._learnt.get(target.admin) if target.broker_id is None else target.broker_id
            if broker_id != self.own_id and self._due.get(target.admin, now) <= now:
                self._ask_soon(target)

    async def _look(self) -> None:
        try:
            self._targets = list(await self._find_targets())
            known = {target.admin for target in self._targets}
            self._due = {admin: due for admin, due in self._due.items() if admin in known}
            self._learnt = {admin: one for admin, one in self._learnt.items() if admin in known}
        finally:
            self.looking = None
            self._changed.set()

    def _ask_soon(self, target: Target) -> None:
        if target.admin not in self.under_way:
            self._due[target.admin] = self._clock() + self.roll.pace.round_seconds
            self.under_way[target.admin] = asyncio.create_task(self._ask(target))

    async def _ask(self, target: Target) -> None:
        gives_back = False
        lender = self._learnt.get(target.admin) if target.broker_id is None else target.broker_id
        try:
            gives_back = await self._ask_one(target, lender)
        except aiohttp.ClientConnectorError as error:
            if lender is not None and error.os_error.errno == errno.ECONNREFUSED:
                self.roll.refuse(lender)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            self.refused["malformed"] += 1
        except (aiohttp.ClientError, OSError):  # TimeoutError is one
            pass  # it is not heard: the roll knows since when
        finally:
            self.under_way.pop(target.admin, None)
        if gives_back:
            self._due[target.admin] = self._clock()
            self._changed.set()

    async def _ask_one(self, target: Target, lender: int | None) -> bool:
        """Ask one sidecar. Returns whether it should be told soon what it has back."""
        asked = {
            name: share
            for name, share in self.shares.items()
            if share.is_asked_for and (lender is None or lender in share.terms.members)
        }
        if not asked:
            return False
        self._number += 1
        self.asked += 1
        number, asked_at = self._number, self._clock()
        answer = await self._send(target.admin, self._request(number, lender, asked))
        self._learnt[target.admin] = answer.broker_id
        if lender is None:
            if answer.broker_id == self.own_id:
                return False
        elif answer.broker_id != lender:
            self.refused["other_broker"] += 1
            return False
        self.roll.hear(answer.broker_id, answer.misses, asked_at)
        gives_back = False
        for name in asked:
            # it may have gone meanwhile
            if (share := self.shares.get(name)) is not None and answer.broker_id in share.terms.members:
                share.note(answer.broker_id, has_rate=answer.refused.get(name) != "unknown_rate")
                size = answer.loans.get(name, 0.0)
                gives_back |= share.take(answer.broker_id, number, size, answer.seconds, asked_at)
        return gives_back

    def _request(self, number: int, lender: int | None, asked: Mapping[str, Share]) -> ShareRequest:
        rates = {}
        for name, share in list(asked.items())[:MOST_RATES]:
            said = share.report(-1 if lender is None else lender)
            rates[name] = ReportMessage(
                rate=said.rate, members=said.members, demand=said.demand, taken=said.taken, borrowed=dict(said.borrowed)
            )
        misses = sorted(self.roll.missing(self._members()))
        return ShareRequest(broker_id=self.own_id, number=number, misses=misses, rates=rates)

    async def _send(self, admin: Address, request: ShareRequest) -> ShareAnswer:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        body: Any = msgspec.json.encode(request)
        url, headers = f"{scheme(self._tls)}://{admin}/v1/shares", bearer(self._token())
        tls = True if self._tls is None else self._tls()
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False, ssl=tls) as response:
            if response.status != 200:
                raise ValueError(f"it answers with {response.status}")
            text = await response.content.read(MOST_BYTES)
            while not response.content.at_eof():
                if len(text) >= MOST_BYTES:
                    raise ValueError("its answer does not end")
                text += await response.content.read(MOST_BYTES - len(text))
            return msgspec.json.decode(text, type=ShareAnswer)
