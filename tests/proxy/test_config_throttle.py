# SPDX-License-Identifier: Apache-2.0
"""The `[throttle]` table beyond Kafka's own settings: standing rates, scoped quotas, and modes, by file and HTTP."""

from __future__ import annotations

import pytest

from tests.fakes.clock import MovedClock
from tests.throttle_names import LEADER_RATE
from weir.proxy.config.load import parse_config
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import Cluster, ThrottleTable
from weir.proxy.config.throttle import settings_of_sides, wants_brokers, wants_facts
from weir.proxy.throttle.table import LayeredThrottle
from weir.quota.scopes import Matching, Reassigned, Recovering
from weir.quota.settings import QuotaSettings

BASE = """
broker_id = 1
[[ingress]]
listen = "127.0.0.1:9501"
upstream = "127.0.0.1:9201"
"""
CLUSTER = '[cluster]\nbootstrap_servers = "127.0.0.1:9101"\n'
THROTTLE = """
[throttle]
"leader.reassignment.throttled.rate" = 50
"follower.recovery.throttled.rate" = 100
"leader.recovery.throttled.rate" = 0
"under.min.isr" = "throttled"
[[throttle.quotas]]
name = "between-zones"
side = "leader"
rate = 20
racks = ["b", "c"]
[[throttle.quotas]]
name = "bulk"
side = "follower"
rate = 30
topics = ["bulk*"]
peers = [2, 3]
mode = "observe"
"""
BULK = {"name": "bulk", "side": "follower", "rate": 30, "topics": ["bulk*"], "mode": "enforce", "kept_at": "here"}


def test_standing_rates_and_scoped_quotas_are_of_their_side() -> None:
    config = parse_config(BASE + CLUSTER + THROTTLE)
    assert settings_of_sides(config, config.throttle)["leader"].quotas == (
        QuotaSettings("reassignment", 50, Reassigned(spares_under_min_isr=False)),
        QuotaSettings("recovery", 0, Recovering(spares_under_min_isr=False)),
        QuotaSettings("between-zones", 20, Matching(racks=frozenset({"b", "c"}))),
    )
    assert settings_of_sides(config, config.throttle)["follower"].quotas == (
        QuotaSettings("recovery", 100, Recovering(spares_under_min_isr=False)),
        QuotaSettings("bulk", 30, Matching(peers=frozenset({2, 3}), topics=("bulk*",)), is_observed=True),
    )
    assert wants_facts(config.throttle)


KEPT = '[[throttle.quotas]]\nname = "into"\nside = "follower"\nrate = 9\nkept_at = "leaders"\n'


def test_quota_kept_by_leaders_is_one_for_each_follower() -> None:
    """It is on the leaders' side, and not on the followers'."""
    config = parse_config(BASE + CLUSTER + KEPT + 'racks = ["a"]\ntopics = ["t*"]\nmode = "observe"')
    assert settings_of_sides(config, config.throttle, {1, 2, 3})["follower"].quotas == ()
    assert settings_of_sides(config, config.throttle, {1, 2, 3})["leader"].quotas == tuple(
        QuotaSettings(f"into/{one}", 9, Matching(frozenset({one}), frozenset({"a"}), ("t*",)), True, one)
        for one in (2, 3)
    )
    assert wants_brokers(config.throttle)
    assert wants_facts(config.throttle)  # for the racks


def test_quota_kept_by_leaders_is_for_its_peers_where_named() -> None:
    config = parse_config(f"{BASE}{CLUSTER}{KEPT}peers = [1, 4]")
    (quota,) = settings_of_sides(config, config.throttle, {2, 3})["leader"].quotas
    assert (quota.name, quota.shared_for) == ("into/4", 4)
    assert not wants_facts(config.throttle)


def test_under_min_isr_is_exempt_and_all_is_enforced_by_default() -> None:
    config = parse_config(f'{BASE}[throttle]\n"leader.recovery.throttled.rate" = 1\n')
    settings = settings_of_sides(config, config.throttle)["leader"]
    assert settings.quotas == (QuotaSettings("recovery", 1, Recovering(spares_under_min_isr=True)),)
    assert not settings.is_observed
    assert not wants_facts(ThrottleTable(leader_rate=1))


def test_throttle_that_only_observes_says_so_for_both_sides() -> None:
    config = parse_config(f'{BASE}[throttle]\nmode = "observe"\n')
    assert all(settings_of_sides(config, config.throttle)[side].is_observed for side in ("leader", "follower"))


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ('"leader.reassignment.throttled.rate" = 1', '"leader.reassignment.throttled.rate"', "needs [cluster]"),
        ('mode = "dry"', "mode", '"enforce" or "observe"'),
        ('"under.min.isr" = "exept"', '"under.min.isr"', '"exempt" or "throttled"'),
        ('[[throttle.quotas]]\nname = "a"\nside = "leader"\nrate = 1', "quotas[0]", "covers nothing"),
        (KEPT, "quotas[0].kept_at", "needs [cluster]: only the cluster tells which leaders share it"),
        (KEPT.replace("follower", "leader"), "quotas[0].kept_at", 'is for side = "follower" only'),
        (KEPT.replace("leaders", "both"), "quotas[0].kept_at", '"here"'),
        ('[[throttle.quotas]]\nname = "a"\nside = "leader"\nrate = 1\ntopics = []', "quotas[0].topics", "is empty"),
        ('[[throttle.quotas]]\nname = "a"\nside = "leader"\nrate = 1\nracks = ["b"]', "quotas[0].racks", "[cluster]"),
        ('[[throttle.quotas]]\nname = "recovery"\nside = "leader"\nrate = 1\npeers = [1]', "quotas[0].name", "must be"),
        ('[[throttle.quotas]]\nname = "a"\nside = "both"\nrate = 1\npeers = [1]', "quotas[0].side", '"leader"'),
        ('[[throttle.quotas]]\nname = "a"\nside = "leader"\npeers = [1]', "quotas[0].rate", "is missing"),
        (
            '[[throttle.quotas]]\nname = "a"\nside = "leader"\nrate = 1\npeers = [1]\n'
            '[[throttle.quotas]]\nname = "a"\nside = "follower"\nrate = 1\npeers = [1]',
            "quotas[1].name",
            "another quota",
        ),
    ],
)
def test_throttle_that_cannot_be_is_refused_with_its_field(text: str, field: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(f"{BASE}[throttle]\n{text}\n")
    assert refused.value.field == f"throttle.{field.strip(chr(34))}"
    assert words in refused.value.reason


@pytest.fixture
def in_force() -> LayeredThrottle:
    config = parse_config(BASE + CLUSTER + THROTTLE)
    return LayeredThrottle(config.throttle, lambda table: None, MovedClock(), config.cluster)


async def test_throttle_shown_with_quotas_may_be_sent_back_as_it_is(in_force: LayeredThrottle) -> None:
    before, shown = in_force.table, await in_force.as_plain()
    assert [quota["name"] for quota in shown["quotas"]] == ["between-zones", "bulk"]
    assert shown["sources"]["quotas.bulk"] == "file"
    await in_force.replace(shown)
    assert in_force.table == before


async def test_patched_list_of_quotas_replaces_the_list_alone(in_force: LayeredThrottle) -> None:
    before = in_force.table
    await in_force.merge({"quotas": [BULK]})
    assert (await in_force.as_plain())["quotas"] == [BULK]
    assert in_force.table.leader_reassignment_rate == before.leader_reassignment_rate
    await in_force.merge({LEADER_RATE: 7})
    assert (await in_force.as_plain())["quotas"] == [BULK]
    await in_force.merge({"quotas": None})
    assert in_force.table.quotas == ()
    in_force.load(before)
    assert in_force.table == before


async def test_quotas_with_a_lease_give_way_to_those_of_the_file() -> None:
    clock = MovedClock()
    config = parse_config(BASE + CLUSTER + THROTTLE)
    in_force = LayeredThrottle(config.throttle, lambda table: None, clock, config.cluster)
    await in_force.merge({"quotas": [BULK], "mode": "observe", "lease": {"seconds": 10}})
    assert (in_force.table.mode, len(in_force.table.quotas)) == ("observe", 1)
    clock.move(10.0)
    in_force.expire()
    assert in_force.table == config.throttle


@pytest.mark.parametrize("body", [{"quotas": [BULK, BULK]}, {"quotas": [{**BULK, "topics": None}]}, {"quotas": "bulk"}])
async def test_wrong_quotas_over_http_change_nothing(body: dict[str, object], in_force: LayeredThrottle) -> None:
    before = in_force.table
    with pytest.raises(ConfigError):
        await in_force.merge(body)
    assert in_force.table == before


async def test_rate_of_reassignment_over_http_needs_a_cluster() -> None:
    body = {"leader.reassignment.throttled.rate": 1}
    without = LayeredThrottle(ThrottleTable(), lambda table: None)
    with pytest.raises(ConfigError, match=r"\[cluster\]"):
        await without.merge(body)
    within = LayeredThrottle(ThrottleTable(), lambda table: None, cluster=Cluster(bootstrap_servers=()))
    await within.merge(body)
    assert within.table.leader_reassignment_rate == 1
