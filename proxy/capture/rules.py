# SPDX-License-Identifier: Apache-2.0
"""The rules of nftables that capture connections between brokers, as text for libnftables.

One table for each sidecar, `weir_<broker id>`, with sets that change while it stands. (A sidecar that takes over from
another process, whose table stands, has `weir_<broker id>_b`.)

- `peers4`, `peers6`: the addresses of the other brokers. `own4`, `own6`: those of this sidecar's broker.
- `alive`: the captured port, for ALIVE_SECONDS after the sidecar last said that it lives. Without it no rule matches,
  so new connections pass beside a sidecar that hangs, or that stepped out of the path. Connections that stand keep
  their way: the kernel asks the rules once, at a connection's first packet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from weir.proxy.config.address import IPAddress

TABLE_PREFIX: Final = "weir_"
ALIVE_SECONDS: Final = 5

MARK: Final = 0x77770000
MARK_MASK: Final = 0xFFFF0000
_OTHERS_MARK: Final = f"meta mark & {MARK_MASK:#x} == {MARK:#x}"  # the own one is accepted before
_VERSIONS: Final = {4: ("ip", "ipv4_addr"), 6: ("ip6", "ipv6_addr")}


TABLE_NAME: Final = rf"{TABLE_PREFIX}\d+(?:_b)?"  # as a regular expression


def table_names(broker_id: int) -> tuple[str, str]:
    """Return the names that a sidecar's table may have: the first unless another process has it."""
    return f"{TABLE_PREFIX}{broker_id}", f"{TABLE_PREFIX}{broker_id}_b"


def mark_of(broker_id: int) -> int:
    """Return the mark (SO_MARK) of a sidecar's own connections, by which they are told from its broker's.

    The upper 16 bits say that it is a sidecar, the lower ones which. Two sidecars of one machine have unlike marks if
    their brokers' ids differ by less than 65,536.
    """
    return MARK | (broker_id & ~MARK_MASK)


@dataclass(frozen=True, slots=True)
class CaptureRules:
    """What is captured, and where it is led.

    - `port`: of the listener between brokers, the same on every broker.
    - `ingress`, `egress`: the sidecar's ports by IP version (4, 6); a side or a version without one is not captured.
    - `from_anyone`: whether connections to the own broker are captured from everywhere, or from its peers alone.
    - `user`: the broker's user, a name or a number, where several brokers share the machine.
    - `transparent`: other machines' connections keep their port on the way to the sidecar (tproxy). So a firewall sees
      them as it sees the broker's. Without, they are redirected, and a firewall has to let in `ct status dnat`.
    - `is_second`: the table has its second name.
    """

    broker_id: int
    port: int
    ingress: dict[int, int]
    egress: dict[int, int]
    from_anyone: bool = False
    user: str | None = None
    transparent: bool = True
    is_second: bool = False

    @property
    def table(self) -> str:
        """The table, as commands name it."""
        return f"inet {table_names(self.broker_id)[self.is_second]}"

    def create(self, *, owned: bool = True) -> str:
        """Return the commands that make the table; it captures nothing before `peers` and `alive` were told.

        `owned`: the kernel removes it when whoever made it ends.
        """
        lines = [f"add table {self.table}" + (" { flags owner; }" if owned else "")]
        for version, (_, kind) in _VERSIONS.items():
            lines += [f"add set {self.table} {name}{version} {{ type {kind}; }}" for name in ("peers", "own")]
        lines += [
            f"add set {self.table} alive {{ type inet_service; flags timeout; }}",
            f"add chain {self.table} output {{ type nat hook output priority -100; }}",
            f"add chain {self.table} prerouting {{ type nat hook prerouting priority -100; }}",
            f"add chain {self.table} divert {{ type filter hook prerouting priority -150; }}",
            f"add rule {self.table} output meta mark {mark_of(self.broker_id):#x} accept",
        ]
        for version, (protocol, _) in _VERSIONS.items():
            lines += self._ingress_rules(version, protocol) + self._egress_rules(version, protocol)
        return "\n".join(lines + self._tracking_rules())

    def _tracking_rules(self) -> list[str]:
        """Return the rules that lead all but the connections that are redirected to the chain `others`.

        These are tracked both ways, also while they pass beside the sidecar, and so is ICMP, whose errors are about
        tracked ones. The sidecar's answers leave from its own ports, and get the broker's only later.
        """
        # by number, as /etc/protocols may be missing: ICMP and ICMPv6
        chosen = [f"{chain} meta l4proto {{ 1, 58 }}" for chain in ("raw_output", "raw_prerouting")]
        if ports := sorted({*self.ingress.values(), *self.egress.values()}):
            chosen.append(f"raw_output tcp sport {{ {', '.join(map(str, ports))} }}")
        for version, (protocol, _) in _VERSIONS.items():
            own, peers = f"{protocol} {{}} @own{version}", f"{protocol} {{}} @peers{version}"
            chosen += [
                f"raw_output {peers.format('daddr')} tcp dport {self.port}",
                f"raw_prerouting {peers.format('saddr')} tcp sport {self.port}",
                f"raw_output {own.format('daddr')} {_OTHERS_MARK} tcp dport {self.port}",
            ]
            if not self.transparent:
                to, from_ = ("", "") if self.from_anyone else (f"{peers.format('daddr')} ", f"{peers.format('saddr')} ")
                chosen += [
                    f"raw_prerouting {own.format('daddr')} {from_}tcp dport {self.port}",
                    f"raw_output {own.format('saddr')} {to}tcp sport {self.port}",
                ]
        lines = [f"add chain {self.table} others"]
        for name, rules in groupby(sorted(chosen), key=lambda rule: rule.partition(" ")[0]):
            hook = f"{{ type filter hook {name.removeprefix('raw_')} priority -300; }}"
            lines.append(f"add chain {self.table} {name} {hook}")
            lines += [f"add rule {self.table} {rule} accept" for rule in rules]
            lines.append(f"add rule {self.table} {name} jump others")
        return lines

    def _ingress_rules(self, version: int, protocol: str) -> list[str]:
        if version not in self.ingress:
            return []
        own, port = f"{protocol} daddr @own{version}", self.ingress[version]
        source = "" if self.from_anyone else f" {protocol} saddr @peers{version}"
        if self.transparent:  # what comes back to this machine itself passes here too
            led = f'divert iifname != "lo" {own}{source} tcp dport @alive tproxy {protocol} to :{port}'
        else:
            led = f"prerouting {own}{source} tcp dport @alive redirect to :{port}"
        return [
            # What another sidecar of this machine sends never passes `prerouting`.
            f"add rule {self.table} output {own} {_OTHERS_MARK} tcp dport @alive redirect to :{port}",
            f"add rule {self.table} {led}",
        ]

    def _egress_rules(self, version: int, protocol: str) -> list[str]:
        if version not in self.egress:
            return []
        user = f" meta skuid {self.user}" if self.user is not None else ""
        return [
            f"add rule {self.table} output {protocol} daddr @peers{version}{user}"
            f" meta mark & {MARK_MASK:#x} != {MARK:#x} tcp dport @alive redirect to :{self.egress[version]}"
        ]

    def addresses(self, own: Iterable[IPAddress], peers: Iterable[IPAddress]) -> str:
        """Return the commands that replace the sets of addresses."""
        lines = []
        for name, found in (("own", set(own)), ("peers", set(peers))):
            for version in _VERSIONS:
                lines.append(f"flush set {self.table} {name}{version}")
                listed = sorted(address for address in found if address.version == version)
                if listed:
                    lines.append(f"add element {self.table} {name}{version} {{ {', '.join(map(str, listed))} }}")
        return "\n".join(lines)

    def stay_alive(self) -> str:
        """Return the command that captures for ALIVE_SECONDS more.

        It adds and deletes before it adds: to add what is there would leave its time as it was.
        """
        element = f"element {self.table} alive {{ {self.port}"
        return f"add {element} }}; delete {element} }}; add {element} timeout {ALIVE_SECONDS}s }}"

    def track(self, *, others: bool) -> str:
        """Return the commands after which the kernel tracks other connections than those between brokers, or not."""
        flush = f"flush chain {self.table} others"
        return flush if others else f"{flush}\nadd rule {self.table} others notrack"

    def step_out(self) -> str:
        """Return the command after which no new connection is captured.

        The rules stay: without a redirect in the namespace, the kernel would reset connections that stand.
        """
        return f"flush set {self.table} alive"
