# SPDX-License-Identifier: Apache-2.0
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.lab.curves import by_second, steady
from weir.lab import demo
from weir.lab.demo import (
    Fetches,
    Move,
    Outcome,
    Promise,
    counted_fetches,
    main,
    promised_delivery,
    promised_fetches,
    promised_mean,
    promised_sessions,
    promised_worst_second,
)
from weir.lab.errors import JavaMissing, LabError
from weir.lab.received import Series
from weir.lab.sidecar import Metrics

QUOTA = 1_000_000
FETCHES = Fetches(by_version={"18": 9002}, full=6, undecoded=0, throttled_bytes=200, held_back=7)


@pytest.mark.parametrize(("part", "held"), [(0.95, False), (0.97, True), (1.0, True), (1.015, True), (1.03, False)])
def test_mean_is_promised_within_bounds(part: float, held: bool) -> None:
    promise = promised_mean(steady(int(part * QUOTA), 20.0), QUOTA)
    assert promise.held is held
    assert promise.sentence.startswith(f"mean rate {part:.3f} x quota")


@pytest.mark.parametrize(("most", "held"), [(1_060_240, True), (1_060_241, False), (2_000_000, False)])
def test_worst_second_is_promised_with_slack_and_one_message(most: int, held: bool) -> None:
    promise = promised_worst_second(by_second([900_000, 1_000_000, most, 1_000_000]), QUOTA)
    assert promise.held is held
    assert promise.sentence.startswith(f"worst second {most / QUOTA:.3f} x quota, from 2.0 s on")


@pytest.mark.parametrize(("burst", "held"), [(310_000, True), (320_000, False)])
@pytest.mark.parametrize("pause", [0.25, 0.35])
def test_follower_that_stood_still_writes_one_grant_more(burst: int, held: bool, pause: float) -> None:
    """0.1 s of quota come every 0.1 s, but for a pause, after which `burst` comes at once."""
    times = [0.1 * number for number in range(20)] + [1.9 + pause + 0.1 * number for number in range(15)]
    times.insert(20, 1.899 + pause)
    sizes = [QUOTA // 10] * 20 + [0, burst] + [QUOTA // 10] * 14
    series = Series(tuple(times), tuple(itertools.accumulate(sizes)))
    promise = promised_worst_second(series, QUOTA)
    assert promise.held is (held and pause > 0.3)
    assert ("the follower wrote nothing for 0.35 s" in promise.sentence) is (pause > 0.3)


@pytest.mark.parametrize(
    ("acked", "consumed", "held", "found"),
    [
        ([0, 1, 2], [2, 0, 1], True, "3 live records acked by acks=all, each consumed once"),
        ([0, 2], [0, 1, 2], True, "2 live records acked by acks=all, each consumed once"),  # 1 failed at its producer
        ([0, 1, 2], [0, 2], False, "1 not consumed, 0 repeated"),
        ([0, 1, 2], [0, 1, 1, 2], False, "0 not consumed, 1 repeated"),
        ([0, 1, 2], [0, 0, 1], False, "1 not consumed, 1 repeated"),
        ([], [], False, "0 live records acked"),
    ],
)
def test_each_acked_record_is_promised_to_be_consumed_once(
    acked: list[int], consumed: list[int], held: bool, found: str
) -> None:
    promise = promised_delivery(acked, consumed)
    assert promise.held is held
    assert found in promise.sentence


def test_fetches_are_promised_to_be_v18_decoded_and_throttled() -> None:
    promise = promised_fetches(FETCHES, 200)
    assert promise.held
    assert promise.sentence == "replica fetches: 9,002 of v18, 0 undecoded; 200 bytes throttled, held back 7 times"


@pytest.mark.parametrize(
    "broken",
    [
        replace(FETCHES, by_version={}),
        replace(FETCHES, by_version={"18": 9000, "17": 1}),
        replace(FETCHES, undecoded=1),
        replace(FETCHES, throttled_bytes=199),
        replace(FETCHES, held_back=0),
    ],
)
def test_fetches_that_were_not_throttled_break_the_promise(broken: Fetches) -> None:
    assert not promised_fetches(broken, 200).held


def test_no_full_fetch_is_promised_once_sessions_are_open() -> None:
    promise = promised_sessions(FETCHES, replace(FETCHES, by_version={"18": 19_002}))
    assert promise.held
    assert (
        promise.sentence == "full fetches: 6 up to the move's first second, none in the 10,000 replica fetches after it"
    )


@pytest.mark.parametrize(
    ("early", "end"),
    [
        (FETCHES, replace(FETCHES, by_version={"18": 19_002}, full=7)),
        (replace(FETCHES, full=0), replace(FETCHES, by_version={"18": 19_002}, full=0)),  # no session was ever opened
        (FETCHES, FETCHES),  # nothing was fetched in between
    ],
)
def test_full_fetches_in_the_steady_state_break_the_promise(early: Fetches, end: Fetches) -> None:
    assert not promised_sessions(early, end).held


def test_fetches_are_counted_over_all_sidecars() -> None:
    """Both sides' fetches count, but only the leader's quota is in force: the follower's bytes are the same again."""
    scrape = Metrics(
        'weir_fetch_requests_total{side="leader",api_version="18"} 10\n'
        'weir_fetch_requests_total{side="follower",api_version="18"} 5\n'
        'weir_fetch_requests_total{side="follower",api_version="7"} 1\n'
        'weir_full_fetches_total{side="leader",sender="follower"} 1\n'
        'weir_full_fetches_total{side="follower",sender="sidecar"} 3\n'
        'weir_passthrough_total{reason="fetch_version"} 1\n'
        'weir_passthrough_total{reason="tls"} 2\n'
        'weir_replication_bytes_total{side="leader",peer="2",throttled="true"} 100\n'
        'weir_replication_bytes_total{side="leader",peer="2",throttled="false"} 50\n'
        'weir_replication_bytes_total{side="follower",peer="1",throttled="true"} 100\n'
        'weir_partitions_left_out_total{side="leader"} 4\n'
        'weir_fetches_held_total{side="leader"} 3\n'
    )
    assert counted_fetches([scrape, scrape]) == Fetches(
        by_version={"18": 30, "7": 2}, full=8, undecoded=6, throttled_bytes=200, held_back=14
    )


@pytest.mark.parametrize(("held", "status"), [(True, 0), (False, 1)])
def test_demo_succeeds_only_when_every_promise_was_held(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, held: bool, status: int
) -> None:
    monkeypatch.setattr(demo, "run", lambda plan, console: Outcome({}, [Promise("one", True), Promise("other", held)]))
    assert main("move", tmp_path / "out") == status


def test_demo_json_has_the_figures_and_promises_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    move = Move(received=steady(4_000_000, 4.0), p99=0.014, early=FETCHES, end=FETCHES)

    def run(plan: object, console: Console) -> Outcome:
        console.print("Three brokers are up.")
        return Outcome({"weir": move}, [Promise("one", True)])

    monkeypatch.setattr(demo, "run", run)
    assert main("move", tmp_path, as_json=True) == 0
    shown = json.loads(capsys.readouterr().out)
    (throttle,) = shown["throttles"]
    assert (throttle["throttle"], throttle["seconds"], throttle["live_p99_ms"]) == ("weir", 4.0, 14.0)
    assert throttle["mean_over_quota"] == pytest.approx(0.8)
    assert shown["promises"] == [{"sentence": "one", "held": True}]
    assert (shown["chart"], shown["page"]) == (f"{tmp_path}/demo.png", f"{tmp_path}/demo.html")


def test_demo_that_fails_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(plan: object, console: object) -> bool:
        raise LabError("broker 1 ended: [/127.0.0.1:9092] is taken")

    monkeypatch.setattr(demo, "run", run)
    assert main("move", tmp_path) == 1
    assert capsys.readouterr().out == "The demo failed: broker 1 ended: [/127.0.0.1:9092] is taken\n"


def test_demo_without_java_says_what_to_install_before_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_java() -> Path:
        raise JavaMissing(17)

    monkeypatch.setattr(demo, "find_java", find_java)
    assert main("move", tmp_path / "out") == 1
    said = capsys.readouterr().out
    assert said.startswith("The demo failed: Kafka needs Java 17 or newer, and there is no java on PATH")
    assert "apt-get install openjdk-17-jre-headless" in said
    assert not (tmp_path / "out").exists()
