# SPDX-License-Identifier: Apache-2.0
"""The tables of the sidecar's configuration file (TOML), with their defaults and limits."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from weir.protocol.request_stream import DEFAULT_FETCH_SIZE_LIMIT
from weir.proxy.config.address import Address, Network
from weir.proxy.config.client_limits import ClientLimitTable
from weir.proxy.config.tls import (
    AdminTlsTable,
    ClientTlsTable,
    PeersTlsTable,
    ServerTlsTable,
    SidecarTlsMode,
    SidecarTlsTable,
)
from weir.quota.settings import (
    FOLLOWER_RATE,
    FOLLOWER_REASSIGNMENT_RATE,
    FOLLOWER_RECOVERY_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REASSIGNMENT_RATE,
    LEADER_RECOVERY_RATE,
    LEADER_REPLICAS,
    UNDER_MIN_ISR,
    SideName,
)
from weir.quota.throttled_replicas import ThrottledReplicas

SIDES: tuple[SideName, SideName] = ("leader", "follower")

DEFAULT_ADMIN = Address("127.0.0.1", 9690)

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

BrokerId = Annotated[int, Meta(ge=0, le=_INT32_MAX, description="a broker id: an integer, 0 or greater")]
BytesPerSecond = Annotated[int, Meta(ge=0, le=_INT64_MAX, description="an integer of bytes/s, 0 or greater")]
PositiveInt = Annotated[int, Meta(ge=1, le=_INT32_MAX, description="an integer greater than 0")]
Seconds = Annotated[float, Meta(ge=0, le=86400, description="a number of seconds from 0 to 86400")]
PositiveSeconds = Annotated[float, Meta(ge=0.1, le=86400, description="a number of seconds from 0.1 to 86400")]
FirstRequestSeconds = Annotated[float, Meta(ge=1, le=86400, description="a number of seconds from 1 to 86400")]
SampleSeconds = Annotated[float, Meta(ge=1, le=600, description="a number of seconds from 1 to 600")]
RotationSeconds = Annotated[float, Meta(ge=1, le=3600, description="a number of seconds from 1 to 3600")]
PositiveBytes = Annotated[int, Meta(ge=1, le=_INT64_MAX, description="an integer of bytes greater than 0")]
LeaseSeconds = Annotated[
    float, Meta(gt=0, le=31_536_000, description="a number of seconds greater than 0, at most 365 days")
]
LeaseText = Annotated[str, Meta(max_length=200, description="a text of at most 200 characters")]
PartOfRate = Annotated[float, Meta(gt=0, le=1, description="a number greater than 0, at most 1")]
FilePath = Annotated[str, Meta(min_length=1, description="a path")]
# org.apache.kafka.common.internals.Topic: the characters and the length of a topic's name.
TopicName = Annotated[
    str,
    Meta(
        pattern=r"^(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z",
        description="a topic's name: 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'",
    ),
]


# None of the names that weir's own quotas have.
QuotaName = Annotated[
    str,
    Meta(
        pattern=r"^(?!(configured|reassignment|recovery)\Z|untold-)[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}\Z",
        description="a name of 1 to 100 letters, digits, '.', '_' and '-', and no name of weir's own quotas",
    ),
]
RackName = Annotated[str, Meta(min_length=1, max_length=200, description="a rack's name")]
TopicPattern = Annotated[
    str,
    Meta(
        pattern=r"^[a-zA-Z0-9._*?\[\]!-]{1,249}\Z",
        description="a topic's name, or a pattern with *, ? or [...] in it",
    ),
]
Mode = Literal["enforce", "observe"]


class Ingress(msgspec.Struct, frozen=True, kw_only=True):
    """A listener on the leader's side, through which everything reaches the broker.

    A Fetch with a replica id counts as a replica's if it comes from `replicas_from`; None: the cluster's metadata
    decides. `tls` is used with those who connect, `upstream_tls` with the broker; without them TLS passes as it is.
    `sidecar_tls` is `[tls]`'s `mode` for this listener.
    """

    listen: Address
    upstream: Address
    replicas_from: tuple[Network, ...] | None = None
    tls: ServerTlsTable | None = None
    upstream_tls: ClientTlsTable | None = None
    sidecar_tls: SidecarTlsMode | None = None


class Egress(msgspec.Struct, frozen=True, kw_only=True):
    """A listener on the follower's side, through which this broker fetches from broker `peer`.

    `tls` has a certificate with the peer's name, as this broker takes the sidecar for the peer; the rest as in Ingress.
    """

    peer: BrokerId
    listen: Address
    upstream: Address
    tls: ServerTlsTable | None = None
    upstream_tls: ClientTlsTable | None = None
    sidecar_tls: SidecarTlsMode | None = None


class Admin(msgspec.Struct, frozen=True, kw_only=True):
    """Where the admin HTTP server listens, where those of the other sidecars are, and who may ask for what.

    - A name in `fleet` stands for all of its addresses. None: the hosts of `[cluster]`'s brokers, at `listen`'s port.
    - `read_token_file` and `write_token_file` hold the tokens for what is only shown, and for changes too.
    - `without_tokens`: whether they may be left out although others than this machine reach `listen`.
    - `names`: host names, beside localhost, by which a server on loopback is asked.
    - `tls`: with it, certificates open what tokens open.
    - `partition_series`: whether the metrics have series for each partition.
    """

    listen: Address = DEFAULT_ADMIN
    fleet: tuple[Address, ...] | None = None
    read_token_file: FilePath | None = None
    write_token_file: FilePath | None = None
    without_tokens: bool = False
    names: tuple[str, ...] = ()
    tls: AdminTlsTable | None = None
    partition_series: bool = True


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Where to ask for the cluster's metadata, and how often.

    - `follow_throttles`: whether Kafka's own throttle, from its dynamic configurations, is in force here too.
    - `followed_part`: the part of Kafka's rates that is then kept to.
    - `properties`: a file with Kafka's client properties, for SASL and TLS.
    """

    bootstrap_servers: tuple[Address, ...]
    poll_seconds: PositiveSeconds = 5.0
    follow_throttles: bool = False
    followed_part: PartOfRate = 0.98
    properties: FilePath | None = None


class CaptureTable(msgspec.Struct, frozen=True, kw_only=True):
    """Connections between brokers that the kernel leads through the sidecar, without a change to any broker.

    - `port`: of the listener between brokers, on every broker.
    - `from_`: whose connections to this broker pass: those of the cluster's brokers, or all.
    - `when`: always, or only while a throttle is in force.
    - `user`: whose connections to other brokers pass; None: everybody's on this machine.
    - `tls`, `upstream_tls`: as an ingress has them, for the leader's side.
    - `peer_tls`, `peer_upstream_tls`: as an egress has them, for the follower's side. The certificate has the names of
      all peers. Without them TLS passes as it is.
    """

    port: Annotated[int, Meta(ge=1, le=65535, description="a port from 1 to 65535")]
    sides: tuple[SideName, ...] = SIDES
    from_: Literal["brokers", "anyone"] = field(default="brokers", name="from")
    when: Literal["always", "throttled"] = "always"
    user: (
        Annotated[str, Meta(pattern=r"^[a-z0-9_][a-z0-9_.-]{0,31}\Z", description="a user's name or number")] | None
    ) = None
    tls: ServerTlsTable | None = None
    upstream_tls: ClientTlsTable | None = None
    peer_tls: ServerTlsTable | None = None
    peer_upstream_tls: PeersTlsTable | None = None


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """How rates are enforced and measured; the names mean what Kafka's properties of these names mean."""

    policy: Literal["strict", "kip73"] = "strict"
    order: Literal["urgent-first", "round-robin"] = "urgent-first"
    window_num: PositiveInt = 11
    window_size_seconds: PositiveInt = 1
    replica_lag_time_max_ms: PositiveInt = 30_000


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """`response_max_bytes`: KIP-74's bound on what one replica fetch returns; None leaves it to the follower."""

    response_max_bytes: PositiveInt | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on sizes (bytes), waits (seconds) and connections, and limits of clients' rates.

    A connection that sends no request within `first_request_seconds` is closed.
    """

    fetch_request_max_bytes: PositiveInt = DEFAULT_FETCH_SIZE_LIMIT
    drain_seconds: Seconds = 10.0
    connect_timeout_seconds: PositiveSeconds = 5.0
    tls_handshake_seconds: PositiveSeconds = 10.0
    first_request_seconds: FirstRequestSeconds = 600.0
    max_connections: PositiveInt = 8_000
    max_connections_per_address: PositiveInt = 4_000
    client: tuple[ClientLimitTable, ...] = ()


class KafkaExport(msgspec.Struct, frozen=True, kw_only=True):
    """The topic that samples are sent to. `max_buffer_bytes` bounds the samples that it has not accepted yet.

    `properties` is a file with Kafka's client properties, for SASL and TLS.
    """

    bootstrap_servers: tuple[Address, ...]
    topic: TopicName
    properties: FilePath | None = None
    max_buffer_bytes: PositiveBytes = 16 * 2**20


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """Where samples go, and how often one is taken.

    A file in `directory` is finished after `rotate_seconds`, or when it has `rotate_bytes`. The oldest files are
    dropped so that all together have at most `max_disk_bytes`.
    """

    interval_seconds: SampleSeconds = 10.0
    directory: FilePath | None = None
    max_disk_bytes: PositiveBytes = 2**30
    rotate_seconds: RotationSeconds = 3600.0
    rotate_bytes: PositiveBytes = 16 * 2**20
    kafka: KafkaExport | None = None


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """What is logged (on stderr), and in which form."""

    json: bool = False
    level: Literal["debug", "info", "warning", "error"] = "info"


class TopicThrottle(msgspec.Struct, frozen=True, kw_only=True):
    """One topic's throttled replicas on each side. None and an empty list both mean no replica."""

    leader_replicas: ThrottledReplicas | None = field(default=None, name=LEADER_REPLICAS)
    follower_replicas: ThrottledReplicas | None = field(default=None, name=FOLLOWER_REPLICAS)


class QuotaTable(msgspec.Struct, frozen=True, kw_only=True):
    """A quota of one side, for some of its links and topics. `rate` is bytes/s; patterns are as a shell's.

    One that is kept at the leaders is for what a follower receives of all its leaders together. `peers` and `racks` are
    the follower's then; without them each follower has the rate.
    """

    name: QuotaName
    side: SideName
    rate: BytesPerSecond
    peers: tuple[BrokerId, ...] | None = None
    racks: tuple[RackName, ...] | None = None
    topics: tuple[TopicPattern, ...] | None = None
    mode: Mode = "enforce"
    kept_at: Literal["here", "leaders"] = "here"


class ThrottleTable(msgspec.Struct, frozen=True, kw_only=True):
    """The `[throttle]` table, the same for the file and for HTTP. Rates are bytes/s; None is no quota.

    The rates of reassignment and recovery need no lists: they hold for all replicas that a reassignment is adding, and
    for all others that are behind. With `under_min_isr` "exempt", which is the default, these leave out partitions with
    fewer replicas in sync than `min.insync.replicas`. In mode "observe" nothing is held back; what would be is counted.
    """

    leader_rate: BytesPerSecond | None = field(default=None, name=LEADER_RATE)
    follower_rate: BytesPerSecond | None = field(default=None, name=FOLLOWER_RATE)
    leader_reassignment_rate: BytesPerSecond | None = field(default=None, name=LEADER_REASSIGNMENT_RATE)
    follower_reassignment_rate: BytesPerSecond | None = field(default=None, name=FOLLOWER_REASSIGNMENT_RATE)
    leader_recovery_rate: BytesPerSecond | None = field(default=None, name=LEADER_RECOVERY_RATE)
    follower_recovery_rate: BytesPerSecond | None = field(default=None, name=FOLLOWER_RECOVERY_RATE)
    under_min_isr: Literal["exempt", "throttled"] | None = field(default=None, name=UNDER_MIN_ISR)
    mode: Mode | None = None
    quotas: tuple[QuotaTable, ...] = ()
    topics: dict[TopicName, TopicThrottle] = field(default_factory=dict)


class LeaseTable(msgspec.Struct, frozen=True, kw_only=True):
    """How long a change over HTTP holds (seconds), who made it, and why."""

    seconds: LeaseSeconds
    owner: LeaseText = ""
    reason: LeaseText = ""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    broker_id: BrokerId
    ingress: tuple[Ingress, ...] = ()
    egress: tuple[Egress, ...] = ()
    admin: Admin = Admin()
    cluster: Cluster | None = None
    capture: CaptureTable | None = None
    tls: SidecarTlsTable | None = None
    quota: Quota = Quota()
    fetch: Fetch = Fetch()
    limits: Limits = Limits()
    export: Export | None = None
    log: Log = Log()
    throttle: ThrottleTable = field(default_factory=ThrottleTable)

    @property
    def routes(self) -> list[tuple[str, Ingress | Egress]]:
        """All routes, each with its path in the file."""
        found: list[tuple[str, Ingress | Egress]] = [(f"ingress[{at}]", one) for at, one in enumerate(self.ingress)]
        return found + [(f"egress[{at}]", one) for at, one in enumerate(self.egress)]

    @property
    def sidecar_tls(self) -> SidecarTlsTable | None:
        """`[tls]` where it asks for TLS between sidecars."""
        return self.tls if self.tls is not None and self.tls.is_between_sidecars else None

    @property
    def strict_tls(self) -> bool:
        """Whether certificates have to keep to RFC 5280; by default they are judged as Kafka's Java judges them."""
        return self.tls is not None and self.tls.strict is True

    @property
    def tls_workers(self) -> int:
        """How many processes end and begin TLS of routes; 0: this one does."""
        return 0 if self.tls is None else self.tls.workers or 0
