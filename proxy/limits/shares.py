# SPDX-License-Identifier: Apache-2.0
"""Shares the limits of clients that several sidecars see: each has a part of a limit, which follows demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from weir.limits.clients import Clients, GroupKey
from weir.limits.group import Group
from weir.quota.shares.demand import DemandMeter
from weir.quota.shares.share import Terms

WHOLE: Final = 1e6
"""A whole limit, as it is shared: in millionths, whatever is limited."""

LEAST_PART: Final = 1e-3
"""The least part of a limit that a client here has. So its first request shows that it wants more."""

IDLE_SECONDS: Final = 60.0
"""How long a limit is shared after it was last used here, or asked for by another sidecar."""

_CHANGE: Final = 0.01  # of a part: smaller ones are not put in force
_NAME: Final = "limits"
_SEPARATOR: Final = "\x00"


class LimitShares:
    """The limits that are shared (proxy.shares' SharedRates). `brokers` gives the ids of those with a sidecar."""

    def __init__(self, clients: Clients, brokers: Callable[[], frozenset[int]], clock: Callable[[], float]) -> None:
        self._clients = clients
        self._brokers = brokers
        self._clock = clock
        self._meters: dict[str, tuple[Group, DemandMeter]] = {}
        self._active_at: dict[str, float] = {}
        self._used: dict[str, float] = {}
        self._begun: set[str] = set()  # limits of which a part was had once

    def shared(self) -> Mapping[str, Terms]:
        """Return the limits in use."""
        members = self._brokers()
        is_alone = len(members) <= 1
        now, terms = self._clock(), {}
        for key, group in self._clients.groups.items():
            name = _name_of(key)
            if group.used != self._used.get(name) or group.is_waited_for:
                self._used[name] = group.used
                self._active_at[name] = now
            is_active = now - self._active_at.get(name, now) < IDLE_SECONDS
            if not is_alone and group.limits and is_active:
                terms[name] = Terms(WHOLE, members)
            else:
                group.rests = not is_alone  # with nobody to share it with, its use is no news
                _put(group, 1.0 / max(1, len(members)))
        for known in (self._meters, self._active_at, self._used):
            for gone in [name for name in known if _key_of(name) not in self._clients.groups]:
                del known[gone]
        return terms

    def asked_for(self, name: str) -> bool:
        """Note that another sidecar wants a part of a limit. Returns whether it is shared here from now on."""
        key = _key_of(name)
        if key is None or not self._clients.want_group(key):
            return False
        self._active_at[name] = self._clock()
        return True

    def demand(self, name: str, share: float) -> float:
        """Return what clients here would use of a limit."""
        group = self._group(name)
        if group is None:
            return 0.0
        known = self._meters.get(name)
        if known is None or known[0] is not group:
            known = self._meters[name] = group, DemandMeter(self._clock)
        return known[1].update(group.used * WHOLE, share, WHOLE, waits=group.is_waited_for)

    def use(self, shares: Mapping[str, float]) -> None:
        """Put the parts in force. Where there is none yet, as at the start, it is a fair one: or clients wait long."""
        self._begun = {name for name, share in shares.items() if share or name in self._begun}
        for name, share in shares.items():
            if (group := self._group(name)) is not None:
                _put(group, share / WHOLE if name in self._begun else 1.0 / max(1, len(self._brokers())))

    def _group(self, name: str) -> Group | None:
        key = _key_of(name)
        return None if key is None else self._clients.groups.get(key)


def _put(group: Group, part: float) -> None:
    part = max(LEAST_PART, min(1.0, part))
    if abs(part - group.share) > _CHANGE * group.share:
        group.share = part


def _name_of(key: GroupKey) -> str:
    return _SEPARATOR.join((_NAME, *key))


def _key_of(name: str) -> GroupKey | None:
    kind, *key = name.split(_SEPARATOR)
    return (key[0], key[1], key[2]) if kind == _NAME and len(key) == 3 else None
