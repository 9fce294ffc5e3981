# SPDX-License-Identifier: Apache-2.0
"""A run told line by line, and a scenario made smaller while it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from tests.quota.model.scenario import Scenario
from tests.quota.model.world import START
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.response_scanner import ScannedTopic
from weir.quota.fetch.decisions import Answer, Decision, Hold

_MOST_SHOWN = 8


def request_line(request: FetchRequest) -> str:
    """What a request asks for: (topic, partition, offset, partition_max_bytes) each."""
    row = FETCH_VERSIONS[request.header.api_version]
    wanted = [
        (_shown(name), partition, offset, size)
        for name, entries, stride, _ in request.topics
        for partition, offset, size in row.requested(stride).iter_unpack(entries)
    ]
    more = f" and {len(wanted) - _MOST_SHOWN} more" if len(wanted) > _MOST_SHOWN else ""
    forgotten = [(_shown(topic.name), topic.partitions) for topic in request.forgotten]
    who = f"v{request.header.api_version} replica {request.replica_id}"
    session = f"session {request.session_id}/{request.session_epoch}"
    limits = f"wait {request.max_wait_ms} min {request.min_bytes} max {request.max_bytes}"
    gone = f" forgets {forgotten}" if forgotten else ""
    return f"{who} {session} {limits} {wanted[:_MOST_SHOWN]}{more}{gone}"


def decision_line(decision: Decision) -> str:
    """What became of a request."""
    if isinstance(decision, Hold):
        return f"held until {decision.until - START:.4f}"
    if isinstance(decision, Answer):
        return "answered with an empty response"
    made_up = f", {decision.expected.appended_topics} topics made up" if decision.expected.appended_topics else ""
    return f"forwarded{made_up}: {request_line(decision.request)}"


def answer_line(topics: list[ScannedTopic]) -> str:
    """The records of an answer: (topic, partition, bytes, whole batches) each."""
    records = [(_shown(topic.name), one.partition, one.size, one.batches) for topic in topics for one in topic.records]
    return f"{sum(len(topic.headers) // 18 for topic in topics)} partitions, records {records}"


def scenario_lines(scenario: Scenario) -> Iterator[str]:
    """A scenario, a field a line."""
    for field in fields(scenario):
        value = getattr(scenario, field.name)
        if isinstance(value, tuple) and value:
            yield f"{field.name}:"
            yield from (f"  {one}" for one in value)
        else:
            yield f"{field.name}: {value}"


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], most_tries: int = 200) -> Scenario:
    """The smallest scenario found, by leaving out one thing at a time, for which `fails` still holds."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(scenario):
            if candidate == scenario or all(one.leader for one in candidate.partitions):  # rogues ask the first leader
                continue
            most_tries -= 1
            if most_tries < 0:
                return scenario
            if fails(candidate):
                scenario, is_smaller = candidate, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    yield replace(scenario, events=())
    yield replace(scenario, rogues=())
    partitions, events = scenario.partitions, scenario.events
    size = len(partitions) // 2
    while size:
        for start in range(0, len(partitions), size):
            yield replace(scenario, partitions=partitions[:start] + partitions[start + size :])
        size //= 2
    for index in range(len(events)):
        yield replace(scenario, events=events[:index] + events[index + 1 :])
    yield replace(scenario, hops="leader")
    yield replace(scenario, hops="follower")
    plain = Scenario(scenario.version, "leader", scenario.leader, scenario.follower, ())
    yield replace(scenario, bandwidth=plain.bandwidth)
    yield replace(scenario, latency=plain.latency)
    yield replace(scenario, leader_slots=plain.leader_slots)
    yield replace(scenario, names_known_after=plain.names_known_after)
    yield replace(
        scenario,
        leader=replace(scenario.leader, one_in=1, response_max_bytes=None),
        follower=replace(scenario.follower, one_in=1, response_max_bytes=None),
    )
    yield replace(scenario, slow=plain.slow)
    yield replace(scenario, late=plain.late)
    yield replace(scenario, scales=plain.scales)
    yield replace(scenario, drift=plain.drift)
    yield replace(scenario, adding=())
    yield replace(scenario, under_min_isr=())
    yield replace(scenario, has_racks=plain.has_racks, told_after=plain.told_after)
    yield from _fewer_quotas(scenario)
    for order in (scenario.leader.order, "round-robin"):
        yield replace(
            scenario,
            leader=replace(scenario.leader, policy="strict", order=order),
            follower=replace(scenario.follower, policy="strict", order=order),
        )
    for index, one in enumerate(partitions):
        for simpler in (
            replace(one, last=()),
            replace(one, live_every=0.0),
            replace(one, pattern=one.pattern[:1]),
            replace(one, count=one.count // 2),
        ):
            if simpler != one:
                yield replace(scenario, partitions=(*partitions[:index], simpler, *partitions[index + 1 :]))


def _fewer_quotas(scenario: Scenario) -> Iterator[Scenario]:
    for side in (scenario.leader, scenario.follower):
        fewer = [replace(side, is_observed=False)]
        fewer += [replace(side, quotas=tuple(one for one in side.quotas if one is not gone)) for gone in side.quotas]
        for one in fewer:
            yield replace(scenario, leader=one) if side is scenario.leader else replace(scenario, follower=one)


def _shown(name: bytes) -> str:
    return name.rstrip(b"\x01").decode(errors="replace")
