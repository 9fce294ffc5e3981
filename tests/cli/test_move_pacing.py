# SPDX-License-Identifier: Apache-2.0
"""`weir move` that keeps its rates by what is free of links, is taken up again, and stands still."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.move_cluster import FakeCluster
from tests.proxy.page.made_up import waiting
from tests.throttle_names import FOLLOWER_RATE, LEADER_RATE
from weir.cli.main import main
from weir.cli.move_pacing import Kept, PacingOptions, written
from weir.cli.move_sidecars import Sidecars
from weir.cli.sidecars import Reply
from weir.control.move_journal import JournalFile, Pacing
from weir.control.move_pacing import DeadlinePacer
from weir.planning.assignment import Partition
from weir.planning.headroom import Passed
from weir.planning.move_throttle import Standing
from weir.planning.reassignment_json import format_reassignment
from weir.proxy.config.address import Address

P0 = Partition("orders", 0)
AUTO = ("--auto", "--link-capacity", "10MB", "--between", "1MB,8MB")


class Ending(FakeCluster):
    """A cluster whose moves end after so many seconds of them."""

    def __init__(self) -> None:
        super().__init__({P0: (1,)}, size=4_000_000)
        self.ends_after = 20.0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.moving:
            self.ends_after -= seconds
            if self.ends_after <= 0:
                self.end_moves()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Ending:
    fake = Ending()
    fake.stand_in(monkeypatch)
    return fake


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(format_reassignment({P0: (2,)}))
    return path


def planned(command: str, plan: Path, *more: str) -> list[str]:
    return ["move", command, "--reassignment-json-file", str(plan), "--bootstrap-server", "kafka1:9092", *more]


def test_auto_stays_to_the_end_and_tells_what_it_allows(
    cluster: Ending, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(planned("execute", plan, *AUTO)) == 0
    out = capsys.readouterr().out
    assert ", allowed 8 MB/s\n" in out
    assert "Throttle removed:" in out
    assert cluster.throttles == Standing()


def test_watch_takes_up_by_itself_how_the_rates_were_kept(
    cluster: Ending, plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        cluster.sleep(seconds)
        if cluster.moving:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    assert main(planned("execute", plan, *AUTO)) == 130
    assert "verify --watch --reassignment-json-file" in capsys.readouterr().err
    monkeypatch.setattr("time.sleep", cluster.sleep)
    with JournalFile(plan, "plan0001").locked():  # somebody else keeps them: this only watches
        cluster.ends_after = 3.0
        main(planned("verify", plan, "--watch", "--json"))
        assert all("rates" not in json.loads(line) for line in capsys.readouterr().out.splitlines()[:-1])


def test_watch_keeps_the_rates_that_were_kept(
    cluster: Ending, plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.ends_after = 1e9
    ticks = 0

    def interrupt(seconds: float) -> None:
        nonlocal ticks
        cluster.sleep(seconds)
        ticks += bool(cluster.moving)
        if ticks == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    assert main(planned("execute", plan, *AUTO)) == 130
    capsys.readouterr()
    cluster.ends_after = 10.0
    assert main(planned("verify", plan, "--watch", "--json")) == 0
    said = capsys.readouterr()
    assert "note: the throttle is kept at what is free of links of 10 MB/s, as it was when this move began." in said.err
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert lines[0]["rates"][0] == {
        "broker": 1,
        "setting": FOLLOWER_RATE,
        "rate": 8_000_000,
        "too_low": False,
        "carried": None,
    }
    assert cluster.throttles == Standing()


def test_who_holds_a_move_up_is_told(cluster: Ending, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.ends_after = 90.0
    main(planned("execute", plan, "--throttle", "1MB"))
    cluster.rates[1][LEADER_RATE] = "0"
    capsys.readouterr()
    main(planned("verify", plan, "--watch"))
    out = capsys.readouterr().out
    said = f"{LEADER_RATE} of broker 1 is 0 B/s, which is not what this move has set"
    assert f", broker 2 has got no nearer for a minute (orders-0): {said}\n" in out


def test_pacing_is_read_as_it_was_written() -> None:
    moment = (datetime.now(UTC) + timedelta(hours=1)).replace(second=30, microsecond=0)
    finish_by = PacingOptions(finish_by=moment.isoformat(), between="5,9").read(Sidecars(None))
    assert finish_by == Kept(Pacing(moment.timestamp(), None, 5, 9), moment, Sidecars(None))
    assert written(finish_by.pacing, Sidecars(None)) == finish_by
    auto = PacingOptions(auto=True, link_capacity="100", between="7,8").read(Sidecars(["h:1"]))
    assert auto == Kept(Pacing(None, 100, 7, 8), None, Sidecars(["h:1"]))
    assert written(auto.pacing, Sidecars(["h:1"])) == auto
    assert (written(Pacing(), Sidecars(None)), written(None, Sidecars(None))) == (None, None)


def test_clock_a_minute_off_moves_the_deadline_by_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The deadline is read once by the wall clock; from then on only monotonic seconds count."""
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    moment = datetime(2026, 11, 22, 6, tzinfo=UTC)

    def at(now: datetime) -> float:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return now

        monkeypatch.setattr("weir.cli.move_pacing.datetime", Clock)
        kept = Kept(Pacing(finish_by=moment.timestamp()), moment, Sidecars(None))
        pacer = kept.pacer(JournalFile(Path("plan.json"), "plan0001"))
        assert isinstance(pacer, DeadlinePacer)
        return pacer.at

    hour_before = moment - timedelta(hours=1)
    assert at(hour_before) == 1000.0 + 3600
    assert at(hour_before + timedelta(minutes=1)) == 1000.0 + 3540


def side(relayed: tuple[int, int], throttled: int, by: str = "quota", topics: tuple[str, ...] = ("orders",)) -> Any:
    return {
        "relayed_bytes": dict(zip(("requests", "answers"), relayed, strict=True)),
        "replication": [{"throttled": True, "bytes": throttled}, {"throttled": False, "bytes": 10**9}],
        "throttled_topics": list(topics),
        "lag": {"messages": 7},
        "held_up_by": {"by": by, "sentence": f"By {by}."},
    }


@pytest.mark.parametrize(
    ("leader", "follower", "passed"),
    [
        (1, 1, Passed(90_000 - 60, 80_000 - 3000, (True, True))),
        (1, 0, Passed(100 + 10, 80_000 - 3000, (False, True))),  # what it follows does not pass the sidecar
        (0, 0, Passed(100 + 10, 2000 + 1)),
    ],
)
def test_links_counters_tell_what_passes_where_moves_count_too(
    monkeypatch: pytest.MonkeyPatch, leader: int, follower: int, passed: Passed
) -> None:
    """The network link's bytes are taken where the move's bytes are counted on this side, too."""
    sides = {
        "leader": {**side((100, 5000), 3000), "connections": leader},
        "follower": {**side((1, 70), 60), "connections": follower},
    }
    network = {"interfaces": ["eth0"], "received_bytes": 90_000, "sent_bytes": 80_000}
    replies = [Reply(Address("h", 1), {"broker_id": 1, "sides": sides, "network": network})]
    monkeypatch.setattr("weir.cli.move_sidecars.ask_all", lambda addresses, method, path: replies)
    assert Sidecars(["h:1"]).passed(frozenset({"orders"})) == {1: passed}


def test_sidecars_tell_of_others_traffic_lag_and_what_holds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sidecars tell what passes besides the move, how far it is behind, and who holds it up."""
    replies = [
        Reply(
            Address("h", 1),
            {"broker_id": 1, "sides": {"leader": side((100, 5000), 3000), "follower": side((1, 70), 60)}},
        ),
        Reply(Address("h", 2), {"broker_id": 2, "sides": {"follower": side((5, 900), 800, by="elsewhere")}}),
        Reply(Address("h", 3), {"broker_id": 3, "sides": {"leader": side((1, 2), 0, by="nobody", topics=())}}),
        Reply(Address("h", 4), error="no answer"),
        Reply(Address("h", 5), {"what": "no sidecar"}),
        Reply(Address("h", 6), waiting()),
    ]
    monkeypatch.setattr("weir.cli.move_sidecars.ask_all", lambda addresses, method, path: replies)
    told = {1: Passed(100 + 10, 2000 + 1), 2: Passed(100, 5)}
    sidecars, nobody = Sidecars(["h:1"]), Sidecars(None)
    assert sidecars.passed(frozenset({"orders"})) == told
    assert sidecars.passed(frozenset()) == {**told, 3: Passed(1, 2)}
    assert nobody.passed(frozenset()) == {}
    assert (sidecars.lag(), nobody.lag()) == (14, None)
    assert sidecars.sentences() == {1: "By quota."}
