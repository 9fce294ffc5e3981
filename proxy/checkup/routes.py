# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the routes, by what was seen at their upstreams. Nothing is asked here but for names.

Names are resolved as a broker on this machine does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.proxy.checkup.findings import Finding, Level, listed
from weir.proxy.checkup.look import CLUSTER_ACTION, FETCH, Seen
from weir.proxy.cluster.view import Broker
from weir.proxy.config.address import Address, IPAddress, numeric_address
from weir.proxy.config.route_checks import addresses_of, is_local
from weir.proxy.config.tables import Config, Egress, Ingress

Resolve = Callable[[str], set[IPAddress]]


def resolver(hosts_file: Path | None) -> Resolve:
    """Return how the broker resolves names: as this machine does, or by the file of `jdk.net.hosts.file` alone.

    Raises OSError where the file cannot be read.
    """
    if hosts_file is None:
        return addresses_of
    known: dict[str, set[IPAddress]] = {}
    for line in hosts_file.read_text().splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        numeric = numeric_address(address)
        if numeric is not None:
            for name in names:
                known.setdefault(name.casefold(), set()).add(numeric)

    def resolve(host: str) -> set[IPAddress]:
        numeric = numeric_address(host)
        return {numeric} if numeric is not None else known.get(host.casefold(), set())

    return resolve


def leads_to(addresses: set[IPAddress], listen: Address) -> bool:
    """Whether connections to one of `addresses` arrive at a listener; ports are not compared."""
    own = numeric_address(listen.host)
    if own is not None and own.is_unspecified:
        return any(is_local(address) for address in addresses)
    return not addresses.isdisjoint(addresses_of(listen.host))


_LAST_FETCH = max(FETCH_VERSIONS)


@dataclass(frozen=True, slots=True)
class World:
    """What the routes are compared with.

    - `seen`: what was found at each upstream, by address.
    - `captured`: what was found at the captured port of this sidecar's broker; None: nobody told where that is.
    - `gaps`: what certificates lack that are taken all the same, by address.
    - `silent`: why nobody answers at an address that this sidecar's broker advertises.
    - `resolve`: names as this machine resolves them; `broker_resolves`: as the broker on it does.
    """

    seen: Mapping[Address, Seen]
    resolve: Resolve
    broker_resolves: Resolve
    captured: Seen | None = None
    gaps: Mapping[Address, str] = field(default_factory=dict)
    silent: Mapping[Address, str] = field(default_factory=dict)

    @property
    def teller(self) -> Seen | None:
        """What was seen at an upstream that told of the cluster; None where none did."""
        return next((seen for seen in self.seen.values() if seen.brokers), None)


def route_findings(config: Config, world: World) -> Iterator[Finding]:
    """Yield what is found of every route, of the cluster's servers, and of the topics that the throttle names."""
    for index, ingress in enumerate(config.ingress):
        yield from _ingress(config, world, f"ingress[{index}]", ingress)
    for index, egress in enumerate(config.egress):
        yield from _egress(config, world, f"egress[{index}]", egress)
    yield from _captured(config, world)
    yield from _servers(config, world)
    yield from _ids(config, world)
    yield from _topics(world)


def _ingress(config: Config, world: World, path: str, route: Ingress) -> Iterator[Finding]:
    seen = world.seen[route.upstream]
    yield from _upstream(config, world, path, route, seen, config.broker_id)
    if seen.broker_id is not None:
        yield from _fetch_versions(path, seen)
        yield from _cluster_action(path, route, seen)
    own = seen.brokers.get(config.broker_id)
    if own is not None and seen.broker_id in (None, config.broker_id):
        yield _advertised(config, world, path, route, own)


def _egress(config: Config, world: World, path: str, route: Egress) -> Iterator[Finding]:
    seen = world.seen[route.upstream]
    yield from _upstream(config, world, path, route, seen, route.peer)
    peer = seen.brokers.get(route.peer)
    if peer is not None and seen.broker_id in (None, route.peer):
        yield _led_here(world, path, route, peer)


def _captured(config: Config, world: World) -> Iterator[Finding]:
    """Yield what is found of this sidecar's broker, which stands behind the captured port as behind an ingress."""
    capture, seen, teller = config.capture, world.captured, world.teller
    if capture is None or seen is None or "leader" not in capture.sides:
        return
    upstream_tls = capture.upstream_tls
    route = Ingress(listen=Address("", 0), upstream=seen.address, tls=capture.tls, upstream_tls=upstream_tls)
    yield from _upstream(config, world, "capture", route, seen, config.broker_id)
    if seen.broker_id is not None:
        yield from _fetch_versions("capture", seen)
        yield from _cluster_action("capture", route, seen)
    own = None if teller is None else teller.brokers.get(config.broker_id)
    if own is not None and own.port != capture.port:
        sentence = (
            f"{own.port} is what broker {config.broker_id} advertises where [cluster] bootstrap_servers lead, and"
            f" {capture.port} is captured: name servers at the captured port, as another one may have other addresses"
        )
        yield Finding("warn", "capture.port", sentence)


def _upstream(
    config: Config, world: World, path: str, route: Ingress | Egress, seen: Seen, expected: int
) -> Iterator[Finding]:
    about, upstream = f"{path}.upstream", route.upstream
    trouble = _trouble(path, route, seen)
    if trouble is not None:
        yield Finding("fail", about, trouble)
    elif seen.is_controller:
        sentence = f"{upstream} is a controller's listener: give the port of the listener between brokers"
        yield Finding("fail", about, sentence)
    elif seen.speaks_tls and route.tls is None and route.upstream_tls is None and not seen.apis:
        yield Finding("warn", about, f"{upstream} speaks TLS, which passes as it is: {_opaque(path, route)}")
    elif seen.broker_id is None:
        sentence = (
            f"{upstream} answers, but whether it is broker {expected} is not known: {seen.not_told}; [cluster]"
            " properties gives the credentials to ask with"
        )
        yield Finding("warn", about, sentence)
    elif seen.broker_id == expected:
        yield Finding("ok", about, f"{upstream} is broker {expected}")
    else:
        yield Finding("fail", about, _wrong_broker(config, world, route, seen.broker_id, expected))


def _opaque(path: str, route: Ingress | Egress) -> str:
    """Say what TLS that passes as it is means for a route, and what to do about it."""
    if isinstance(route, Ingress):
        return (
            f"no quota counts what it carries; set {path}.tls and {path}.upstream_tls, or give a listener without TLS"
        )
    return (
        f"no quota of this side counts what it carries; give {path}.tls a certificate with the name of broker"
        f' {route.peer}, and set {path}.upstream_tls, or let the leaders keep the quota (kept_at = "leaders")'
    )


def _trouble(path: str, route: Ingress | Egress, seen: Seen) -> str | None:
    upstream = seen.address
    is_egress = isinstance(route, Egress)
    runs = "the peer, or its sidecar," if is_egress else "the broker"
    match seen.trouble:
        case "unresolved":
            return (
                f"the name {upstream.host} does not resolve on this machine: correct it, or make it known"
                " (DNS, /etc/hosts)"
            )
        case "refused":
            return f"nothing listens on {upstream}: correct the port, or start {runs} if it does not run"
        case "timeout" | "unreachable":
            return f"{upstream} cannot be reached ({seen.reason}): look at the address, the network and its firewalls"
        case "silent":
            said = f" ({seen.reason})" if seen.reason else ""
            return (
                f"{upstream} takes connections and answers nothing that Kafka would{said}: give the listener between"
                " brokers"
            )
        case "plaintext":
            if route.tls is None:
                return (
                    f"{upstream} speaks no TLS, and [tls] requires it: that sidecar has no [tls], or it is no sidecar"
                )
            return f"{upstream} speaks no TLS, and {path}.upstream_tls expects it: give the listener with TLS"
        case "certificate":
            return f"TLS with {upstream} fails: {seen.reason}; look at the certificate there, and at ca and names here"
        case None:
            return None


def _wrong_broker(config: Config, world: World, route: Ingress | Egress, found: int, expected: int) -> str:
    upstream = route.upstream
    if isinstance(route, Ingress):
        return f"{upstream} is broker {found}, and broker_id is {expected}: correct one of the two"
    if found == config.broker_id:
        return (
            f"{upstream} is broker {found}, which is this broker itself: its fetches from broker {expected} would come"
            f" back to it; give the address of broker {expected}"
        )
    for index, other in enumerate(config.egress):
        if other.peer == found:
            is_swapped = world.seen[other.upstream].broker_id == expected
            both = "the two upstreams are swapped" if is_swapped else f"egress[{index}] has that peer"
            return f"{upstream} is broker {found}, and not peer {expected}: {both}"
    return f"{upstream} is broker {found}, and not peer {expected}: correct peer or upstream"


def _advertised(config: Config, world: World, path: str, route: Ingress, own: Broker) -> Finding:
    """Compare what the own broker tells its peers with what listens here."""
    about, shown = f"{path}.listen", Address(own.host, own.port)
    at_port = [other for other in config.ingress if other.listen.port == own.port]
    where = world.resolve(own.host)
    if own.port == route.upstream.port and where & world.resolve(route.upstream.host):
        sentence = (
            f"broker {config.broker_id} advertises {shown}, which is itself: its followers pass beside the sidecar;"
            f" let advertised.listeners lead to {route.listen}"
        )
        return Finding("fail", about, sentence)
    if where and (reason := world.silent.get(shown)) is not None:  # followers may know a name that is not known here
        sentence = (
            f"broker {config.broker_id} advertises {shown}, where nobody answers ({reason}): its followers get nothing;"
            " start the sidecar, or mend the name (docs/operations.md#when-a-sidecar-dies)"
        )
        return Finding("fail", about, sentence)
    if not at_port:
        sentence = (
            f"broker {config.broker_id} advertises {shown}, and no ingress listens on port {own.port}: its followers do"
            f" not come here; let advertised.listeners lead to {route.listen}"
        )
        return Finding("fail", about, sentence)
    if not any(leads_to(where, other.listen) for other in at_port):
        here = listed(sorted(map(str, where))) if where else "nowhere"
        sentence = (
            f"broker {config.broker_id} advertises {shown}, which leads to {here} from this machine, and not to"
            f" {listed(other.listen for other in at_port)}: make sure that on the peers it leads to this listener"
        )
        return Finding("warn", about, sentence)
    return Finding("ok", about, f"broker {config.broker_id} advertises {shown}, which leads here")


def _led_here(world: World, path: str, route: Egress, peer: Broker) -> Finding:
    """Compare where this broker looks for a peer with the listener for it."""
    about, shown = f"{path}.listen", Address(peer.host, peer.port)
    if peer.port != route.listen.port:
        sentence = (
            f"broker {route.peer} advertises {shown}, and this listener has port {route.listen.port}: this broker"
            f" fetches past it; listen on port {peer.port}"
        )
        return Finding("fail", about, sentence)
    where = world.broker_resolves(peer.host)
    if not leads_to(where, route.listen):
        here = listed(sorted(map(str, where))) if where else "nowhere"
        sentence = (
            f"broker {route.peer} advertises {shown}, which leads to {here} from this machine, and not to"
            f" {route.listen}: this broker fetches past the sidecar; let {peer.host} lead to {route.listen.host} here"
            " (if the broker has a hosts file of its own, name it with --hosts-file)"
        )
        return Finding("fail", about, sentence)
    return Finding("ok", about, f"broker {route.peer} advertises {shown}, which leads here")


def _fetch_versions(path: str, seen: Seen) -> Iterator[Finding]:
    about = f"{path}.upstream"
    oldest, newest = seen.apis.get(FETCH, (0, -1))
    if newest > _LAST_FETCH:
        sentence = (
            f"the broker knows Fetch up to v{newest}, and this weir up to v{_LAST_FETCH}: if its followers use a newer"
            ' one, they pass unthrottled (weir_passthrough_total{reason="fetch_version"} tells); look for a newer weir'
        )
        yield Finding("warn", about, sentence)
    else:
        yield Finding("ok", about, f"the broker knows Fetch v{oldest} to v{newest}, all of which are understood")


def _cluster_action(path: str, route: Ingress, seen: Seen) -> Iterator[Finding]:
    """Whether followers may fetch where the broker takes them for whoever the sidecar is."""
    if seen.operations is None:
        return
    about = f"{path}.upstream"
    who = "this sidecar's certificate" if route.upstream_tls is not None else "whoever connects there unauthenticated"
    if seen.operations >> CLUSTER_ACTION & 1:
        yield Finding("ok", about, f"{who} has ClusterAction, which fetches of replicas need")
    elif route.upstream_tls is not None or not seen.speaks_tls:
        sentence = (
            f"{who} has no ClusterAction, so the broker refuses fetches of replicas: allow it with kafka-acls --add"
            " --cluster --operation ClusterAction, or make its principal a super user"
        )
        yield Finding("fail", about, sentence)


def _servers(config: Config, world: World) -> Iterator[Finding]:
    if config.cluster is None:
        return
    about = "cluster.bootstrap_servers"
    found = {server: world.seen[server] for server in config.cluster.bootstrap_servers}
    level: Level = "warn" if any(seen.brokers for seen in found.values()) else "fail"
    for server, seen in found.items():
        if seen.brokers:
            yield Finding("ok", about, f"{server} tells of {len(seen.brokers)} brokers: {listed(sorted(seen.brokers))}")
            continue
        if seen.is_controller:
            reason = "it is a controller's listener; name a broker's"
        elif seen.trouble == "unresolved":
            reason = "the name does not resolve on this machine"
        else:
            reason = seen.not_told or seen.reason or "it answers nothing that Kafka would"
        yield Finding(level, about, f"{server} tells nothing of the cluster: {reason}")


def _ids(config: Config, world: World) -> Iterator[Finding]:
    """Compare the ids of the configuration with those of the cluster's brokers."""
    teller = world.teller
    if teller is None:
        return
    there = listed(sorted(teller.brokers))
    if config.broker_id not in teller.brokers:
        sentence = f"no broker that runs has the id {config.broker_id} ({there}): correct it, or start that broker"
        yield Finding("fail", "broker_id", sentence)
    for index, egress in enumerate(config.egress):
        if egress.peer not in teller.brokers:
            sentence = f"no broker that runs has the id {egress.peer} ({there}): correct it, or start that broker"
            yield Finding("fail", f"egress[{index}].peer", sentence)
    peers = {egress.peer for egress in config.egress}
    left_out = sorted(set(teller.brokers) - peers - {config.broker_id})
    if peers and left_out:
        sentence = f"{listed(left_out)} have no egress: what this broker fetches from there is not its quota's"
        yield Finding("warn", "egress", sentence if len(left_out) > 1 else sentence.replace(" have ", " has ", 1))


def _topics(world: World) -> Iterator[Finding]:
    teller = world.teller
    for name, nearest in sorted(teller.missing.items()) if teller is not None else ():
        about = f"throttle.topics.{name}"
        if nearest is None:
            yield Finding("warn", about, f"there is no topic {name}: nothing of it is throttled until there is one")
        else:
            yield Finding("fail", about, f"there is no topic {name}: did you mean {nearest}?")
