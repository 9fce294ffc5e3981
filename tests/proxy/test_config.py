# SPDX-License-Identifier: Apache-2.0
"""The configuration file: what is read from it, and how each mistake is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from weir.proxy.config.address import Address, Network
from weir.proxy.config.load import load_config, parse_config
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import Cluster
from weir.proxy.config.throttle import settings_of_sides
from weir.quota.settings import ThrottleSettings
from weir.quota.throttled_replicas import ThrottledReplicas

# A file as users write it, with most tables of docs/running.md.
FULL = """
broker_id = 1

[[ingress]]
listen = "127.0.0.1:9501"
upstream = "127.0.0.1:9201"

[[egress]]
peer = 2
listen = "127.0.1.2:9092"
upstream = "127.0.0.1:9502"

[admin]
listen = "127.0.0.1:9690"

[cluster]
bootstrap_servers = "127.0.0.1:9101"

[quota]
policy = "strict"
order = "round-robin"
window_num = 11
window_size_seconds = 1
replica_lag_time_max_ms = 30000

[fetch]
response_max_bytes = 10485760

[export]
interval_seconds = 5
directory = "/var/lib/weir/samples"
max_disk_bytes = 200000000
rotate_seconds = 60
rotate_bytes = 1000000

[export.kafka]
bootstrap_servers = "127.0.0.1:9101, 127.0.0.1:9102"
topic = "weir-samples"
max_buffer_bytes = 2000000

[throttle]
"leader.replication.throttled.rate" = 5000000
"follower.replication.throttled.rate" = 6000000
[throttle.topics.orders]
"leader.replication.throttled.replicas" = "*"
"follower.replication.throttled.replicas" = "0:2,1:2"
"""

SMALL = """
broker_id = 1
[[ingress]]
listen = "127.0.0.1:9501"
upstream = "127.0.0.1:9201"
"""


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    return caught.value


def test_config_every_table_given_reads_them() -> None:
    config = parse_config(FULL)
    assert config.broker_id == 1
    assert config.ingress[0].listen == Address("127.0.0.1", 9501)
    assert config.ingress[0].upstream == Address("127.0.0.1", 9201)
    assert (config.egress[0].peer, config.egress[0].listen) == (2, Address("127.0.1.2", 9092))
    assert config.cluster is not None
    assert config.cluster.bootstrap_servers == (Address("127.0.0.1", 9101),)
    assert config.fetch.response_max_bytes == 10485760
    assert (config.throttle.leader_rate, config.throttle.follower_rate) == (5000000, 6000000)
    assert config.throttle.topics["orders"].follower_replicas == ThrottledReplicas.parse("0:2,1:2")


def test_config_export_of_files_and_a_topic_is_read() -> None:
    export = parse_config(FULL).export
    assert export is not None
    assert (export.interval_seconds, export.directory) == (5.0, "/var/lib/weir/samples")
    assert (export.max_disk_bytes, export.rotate_seconds, export.rotate_bytes) == (200_000_000, 60.0, 1_000_000)
    assert export.kafka is not None
    assert export.kafka.bootstrap_servers == (Address("127.0.0.1", 9101), Address("127.0.0.1", 9102))
    assert (export.kafka.topic, export.kafka.max_buffer_bytes) == ("weir-samples", 2_000_000)


def test_config_export_of_a_directory_alone_has_its_defaults() -> None:
    export = parse_config(SMALL + '[export]\ndirectory = "samples"').export
    assert export is not None
    assert (export.interval_seconds, export.kafka) == (10.0, None)
    assert (export.max_disk_bytes, export.rotate_seconds, export.rotate_bytes) == (1073741824, 3600.0, 16777216)
    topic_alone = '[export.kafka]\nbootstrap_servers = "127.0.0.1:1"\ntopic = "t"'
    export = parse_config(SMALL + topic_alone).export
    assert export is not None and export.kafka is not None
    assert (export.directory, export.kafka.max_buffer_bytes) == (None, 16777216)


def test_config_export_that_leads_nowhere_is_refused() -> None:
    error = refusal(SMALL + "[export]\ninterval_seconds = 10")
    assert error.field == "export"
    assert "[export.kafka]" in error.reason


def test_config_absent_optional_tables_have_documented_defaults() -> None:
    config = parse_config(SMALL)
    assert config.admin.listen == Address("127.0.0.1", 9690)
    assert config.cluster is None
    assert (config.quota.policy, config.quota.window_num, config.quota.window_size_seconds) == ("strict", 11, 1)
    assert config.quota.order == "urgent-first"
    assert config.quota.replica_lag_time_max_ms == 30000
    assert config.fetch.response_max_bytes is None
    assert config.limits.fetch_request_max_bytes == 16777216
    assert (config.limits.drain_seconds, config.limits.connect_timeout_seconds) == (10.0, 5.0)
    assert config.export is None
    assert (config.log.json, config.log.level) == (False, "info")
    assert (config.throttle.leader_rate, config.throttle.topics) == (None, {})


def test_config_bootstrap_servers_with_commas_names_several() -> None:
    config = parse_config(FULL.replace('"127.0.0.1:9101"', '"127.0.0.1:9101, [::1]:9102"'))
    assert config.cluster is not None
    assert config.cluster.bootstrap_servers == (Address("127.0.0.1", 9101), Address("::1", 9102))


@pytest.mark.parametrize("written", ['["10.0.0.0/8", "fd00::1"]', '"10.0.0.0/8, fd00::1"'])
def test_config_networks_of_replicas_are_read(written: str) -> None:
    found = parse_config(f"{SMALL}replicas_from = {written}\n").ingress[0].replicas_from
    assert found == (Network.parse("10.0.0.0/8"), Network.parse("fd00::1"))


def test_config_settings_of_a_side_are_that_sides() -> None:
    text = FULL.replace('"strict"', '"kip73"').replace("num = 11", "num = 12").replace("seconds = 1\n", "seconds = 2\n")
    config = parse_config(text.replace("_ms = 30000", "_ms = 40000"))
    leader = ThrottleSettings(
        rate=5000000,
        replicas={"orders": ThrottledReplicas.parse("*")},
        policy="kip73",
        order="round-robin",
        window_num=12,
        window_size_seconds=2,
        replica_lag_time_max_ms=40000,
        response_max_bytes=10485760,
    )
    assert settings_of_sides(config, config.throttle)["leader"] == leader
    assert settings_of_sides(config, config.throttle)["follower"] == replace(
        leader, rate=6000000, replicas={"orders": ThrottledReplicas.parse("0:2,1:2")}
    )


UNKNOWN_KEYS = [
    ("quota.polcy", "policy =", "polcy =", "policy"),
    ("ingress[0].listn", 'listen = "127.0.0.1:9501"', 'listn = "127.0.0.1:9501"', "listen"),
    ("egress[0].peers", "peer =", "peers =", "peer"),
    ("export.intervall", "interval_seconds", "intervall", "interval_seconds"),
    ("export.kafka.topics", "topic =", "topics =", "topic"),
    ("throtle", "[throttle]", "[throtle]", "throttle"),
    ("throttle.topic", "throttle.topics.orders", "throttle.topic.orders", "topics"),
    (
        "throttle.leader.replication.rate",
        '"leader.replication.throttled.rate"',
        '"leader.replication.rate"',
        "leader.replication.throttled.rate",
    ),
    (
        "throttle.topics.orders.leader.throttled.replicas",
        '"leader.replication.throttled.replicas"',
        '"leader.throttled.replicas"',
        "leader.replication.throttled.replicas",
    ),
]


@pytest.mark.parametrize(("field", "before", "after", "nearest"), UNKNOWN_KEYS)
def test_config_unknown_key_names_the_nearest_known_one(field: str, before: str, after: str, nearest: str) -> None:
    error = refusal(FULL.replace(before, after, 1))
    assert error.field == field
    assert f'did you mean "{nearest}"?' in error.reason


def test_config_unknown_key_like_no_other_names_all_known_ones() -> None:
    assert refusal(FULL + "\n[limits]\nx = 1").reason.endswith(
        "known here: client, connect_timeout_seconds, drain_seconds, fetch_request_max_bytes, first_request_seconds, "
        "max_connections, max_connections_per_address, tls_handshake_seconds"
    )


def test_config_dotted_key_without_quotes_says_to_quote_it() -> None:
    """TOML reads it as tables within tables."""
    error = refusal(FULL.replace('"leader.replication.throttled.rate"', "leader.replication.throttled.rate"))
    assert "must be quoted" in error.reason


@pytest.mark.parametrize("name", ["my.orders", "my.orders.eu"])
def test_config_unquoted_topic_with_dots_says_to_quote_it(name: str) -> None:
    error = refusal(FULL.replace("topics.orders", f"topics.{name}"))
    assert error.reason == f'a name with dots must be quoted: "{name}"'
    assert error.field == f"throttle.topics.{name}"


WRONG_VALUES = [
    ("broker_id", "broker_id = 1", "broker_id = -1"),
    ("broker_id", "broker_id = 1", 'broker_id = "1"'),
    ("broker_id", "broker_id = 1", "broker_id = true"),
    ("broker_id", "broker_id = 1", "broker_id = 2147483648"),
    ("broker_id", "broker_id = 1", ""),
    ("ingress[0].upstream", 'upstream = "127.0.0.1:9201"', ""),
    ("ingress[0].listen", '"127.0.0.1:9501"', '"127.0.0.1"'),
    ("ingress[0].listen", '"127.0.0.1:9501"', '"127.0.0.1:65536"'),
    ("ingress[0].listen", '"127.0.0.1:9501"', '"::1:9501"'),
    ("ingress[0].listen", '"127.0.0.1:9501"', '"kafka://b1:9501"'),
    ("ingress[0].listen", '"127.0.0.1:9501"', '":9501"'),
    ("ingress[0].listen", '"127.0.0.1:9501"', "9501"),
    ("ingress[0].upstream", '"127.0.0.1:9201"', '"127.0.0.1:0"'),
    ("ingress[0].replicas_from[1]", "[[egress]]", 'replicas_from = ["10.0.0.0/8", "kafka2"]\n[[egress]]'),
    ("ingress[0].replicas_from", "[[egress]]", "replicas_from = []\n[[egress]]"),
    ("ingress[0].replicas_from", "[[egress]]", "replicas_from = 10\n[[egress]]"),
    ("egress[0].peer", "peer = 2", "peer = -2"),
    ("admin.listen", '"127.0.0.1:9690"', '"nowhere"'),
    ("cluster.bootstrap_servers", '"127.0.0.1:9101"', '"127.0.0.1:9101,b2"'),
    ("cluster.bootstrap_servers", '"127.0.0.1:9101"', '"127.0.0.1:0"'),
    ("cluster.bootstrap_servers", '= "127.0.0.1:9101"', "= []"),
    ("export.kafka.bootstrap_servers", '= "127.0.0.1:9101, 127.0.0.1:9102"', "= []"),
    ("export.interval_seconds", "interval_seconds = 5", "interval_seconds = 0.5"),
    ("export.interval_seconds", "interval_seconds = 5", "interval_seconds = 601"),
    ("export.directory", '"/var/lib/weir/samples"', '""'),
    ("export.directory", '"/var/lib/weir/samples"', "7"),
    ("export.rotate_seconds", "rotate_seconds = 60", "rotate_seconds = 0"),
    ("export.max_disk_bytes", "= 200000000", "= 1999999"),
    ("export.max_disk_bytes", "= 200000000", '= "1GB"'),
    ("export.kafka.topic", '"weir-samples"', '"weir/samples"'),
    ("export.kafka.topic", 'topic = "weir-samples"', ""),
    ("export.kafka.bootstrap_servers", "127.0.0.1:9102", "b2"),
    ("export.kafka.max_buffer_bytes", "max_buffer_bytes = 2000000", "max_buffer_bytes = 0"),
    ("quota.policy", '"strict"', '"strictest"'),
    ("quota.order", '"round-robin"', '"shortest"'),
    ("quota.window_num", "window_num = 11", "window_num = 0"),
    ("fetch.response_max_bytes", "10485760", "0"),
    ("fetch", "[fetch]", "[[fetch]]"),
    ("throttle.leader.replication.throttled.rate", "= 5000000", "= -1"),
    ("throttle.leader.replication.throttled.rate", "= 5000000", '= "5MB"'),
    ("throttle.leader.replication.throttled.rate", "= 5000000", "= 5.5"),
    ("throttle.leader.replication.throttled.rate", "= 5000000", "= 9223372036854775808"),
    ("throttle.topics.orders.leader.replication.throttled.replicas", '"*"', '"0:1,x"'),
    ("throttle.topics.orders.leader.replication.throttled.replicas", '"*"', "[0]"),
    ("throttle.topics.or/ders", "topics.orders", 'topics."or/ders"'),
    ("throttle.topics..", "topics.orders", 'topics."."'),
    (r"throttle.topics.'orders\n'", "topics.orders", r'topics."orders\n"'),
    ("export.kafka.topic", '"weir-samples"', r'"weir-samples\n"'),
    ("broker_id", "broker_id = 1", "broker_id = 0x" + "f" * 6000),
    ("", "broker_id = 1", "broker_id = " + "9" * 5000),
]


@pytest.mark.parametrize(("field", "before", "after"), WRONG_VALUES)
def test_config_wrong_value_is_refused_by_the_path_of_its_field(field: str, before: str, after: str) -> None:
    assert before in FULL
    assert refusal(FULL.replace(before, after, 1)).field == field


def test_config_rate_of_zero_is_a_quota_and_not_none() -> None:
    assert parse_config(FULL.replace("= 5000000", "= 0")).throttle.leader_rate == 0


def test_config_error_is_one_sentence_with_file_path_and_reason(tmp_path: Path) -> None:
    file = tmp_path / "weir.toml"
    file.write_text(FULL.replace('"strict"', '"loose"'))
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(caught.value) == f'{file}: quota.policy: must be "strict" or "kip73", not \'loose\''


def test_config_without_the_broker_s_id_asks_the_cluster(tmp_path: Path) -> None:
    file = tmp_path / "weir.toml"
    asked: list[tuple[int, str]] = []

    def own_broker(port: int, cluster: Cluster) -> int:
        asked.append((port, str(cluster.bootstrap_servers[0])))
        return 7

    file.write_text('[capture]\nport = 9092\n[cluster]\nbootstrap_servers = ["10.0.0.1:9092"]\n')
    assert load_config(file, own_broker).broker_id == 7
    assert asked == [(9092, "10.0.0.1:9092")]
    file.write_text('broker_id = 1\n[capture]\nport = 9092\n[cluster]\nbootstrap_servers = ["10.0.0.1:9092"]\n')
    assert load_config(file, own_broker).broker_id == 1
    file.write_text("[capture]\nport = 9092\n")
    with pytest.raises(ConfigError, match="broker_id"):
        load_config(file, own_broker)
    assert len(asked) == 1


def test_config_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "none.toml")


@pytest.mark.parametrize(("content", "reason"), [(b"broker_id = \xff", "not UTF-8"), (b"broker_id", "not TOML")])
def test_config_file_that_is_no_toml_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "weir.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        load_config(file)


def test_config_without_a_route_is_refused() -> None:
    assert "nothing to do" in refusal("broker_id = 1").reason
