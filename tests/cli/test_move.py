# SPDX-License-Identifier: Apache-2.0
"""`weir move` with options and files that are wrong, and what it prints of a cluster in memory."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.commands import failing
from tests.fakes.move_cluster import FakeCluster
from weir.cli.main import main
from weir.control.move_journal import JournalFile
from weir.planning.assignment import Partition, Replica
from weir.planning.move_throttle import Standing
from weir.planning.reassignment_json import format_reassignment, parse_reassignment

P0, P1 = Partition("orders", 0), Partition("orders", 1)
SERVER = ("--bootstrap-server", "kafka1:9092")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """What `weir move` connects to; time passes in it alone."""
    fake = FakeCluster({P0: (1,), P1: (1, 2)}, size=4_000_000)
    fake.stand_in(monkeypatch)
    return fake


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(format_reassignment({P0: (2,), P1: (1, 2)}))
    return path


def planned(command: str, plan: Path, *more: str) -> list[str]:
    return ["move", command, "--reassignment-json-file", str(plan), *SERVER, *more]


def test_plan_that_is_no_json_is_refused_with_line_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{\n "partitions": [}')
    status, sentence = failing(capsys, *planned("execute", path))
    assert status == 2
    assert sentence == f"{path}: line 2, column 17: this is no JSON: expecting value."


@pytest.mark.parametrize("command", ["execute", "verify", "cancel"])
def test_plan_that_cannot_be_read_is_told(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, sentence = failing(capsys, *planned(command, tmp_path / "none"))
    assert status == 2
    assert sentence.endswith("none cannot be read: No such file or directory.")


def test_address_that_is_none_is_refused(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["move", "verify", "--reassignment-json-file", str(plan), "--bootstrap-server", "kafka1"]
    status, sentence = failing(capsys, *words)
    assert status == 2
    assert sentence == "--bootstrap-server: 'kafka1' is no address: give it as in kafka1:9092."


def test_properties_that_cannot_be_used_are_refused(
    tmp_path: Path, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("security.protocol=TLS\n")
    status, sentence = failing(capsys, *planned("verify", plan, "--command-config", str(properties)))
    assert status == 2
    assert sentence.startswith("--command-config: security.protocol has to be one of PLAINTEXT")


@pytest.mark.parametrize("option", ["--throttle", "--replica-alter-log-dirs-throttle"])
def test_rate_that_is_none_is_refused(option: str, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, sentence = failing(capsys, *planned("execute", plan, option, "fast"))
    assert status == 2
    assert sentence.startswith(f"{option}: 'fast' is not a rate")


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "words", "sentence"),
    [
        (
            "execute",
            ("--finish-by", "06:00", "--throttle", "1MB"),
            "--throttle sets a rate, --finish-by and --auto find",
        ),
        ("execute", ("--between", "1MB,2MB"), "--between says which rates --finish-by or --auto may use"),
        ("verify", ("--between", "1MB,2MB", "--watch"), "--between says which rates --finish-by or --auto may use"),
        ("verify", ("--finish-by", "06:00"), "--finish-by and --auto need --watch"),
        ("verify", ("--auto", "--link-capacity", "9MB"), "--finish-by and --auto need --watch"),
        ("execute", ("--auto",), "--auto and --link-capacity go together"),
        ("execute", ("--link-capacity", "9MB"), "--auto and --link-capacity go together"),
        ("execute", ("--auto", "--link-capacity", "fast"), "--link-capacity: 'fast' is not a rate"),
        ("execute", ("--auto", "--link-capacity", "9MB", "--finish-by", "06:00"), "--auto and --finish-by both keep"),
        ("execute", ("--auto", "--link-capacity", "9MB", "--throttle", "1MB"), "--throttle sets a rate, --finish-by"),
        ("execute", ("--finish-by", "soon"), "--finish-by: 'soon' is not a time"),
        ("execute", ("--finish-by", "06:00", "--between", "1MB"), "--between: '1MB' is no range"),
        ("execute", ("--finish-by", "06:00", "--between", "2MB,1MB"), "--between: '2MB,1MB' is no range"),
        ("execute", ("--finish-by", "06:00", "--between", "0,1MB"), "--between: '0,1MB' is no range"),
        ("execute", ("--finish-by", "06:00", "--between", "1MB,fast"), "--between: 'fast' is not a rate"),
    ],
)
def test_wrong_use_of_what_keeps_the_rate_is_told(
    command: str, words: tuple[str, ...], sentence: str, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = failing(capsys, *planned(command, plan, *words))
    assert status == 2
    assert said.startswith(sentence)


@pytest.mark.parametrize(
    ("limits", "prospect"), [("1,900MB", "in time at "), ("1,1kB", " late at 1 kB/s")], ids=["in time", "late"]
)
def test_finish_by_stays_and_tells_whether_it_will_be_made(
    limits: str, prospect: str, cluster: FakeCluster, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tomorrow = (datetime.now().astimezone() + timedelta(days=1)).replace(second=30).isoformat(" ", "seconds")
    looks = iter(range(20))

    def progress(name: str) -> None:
        if name == "reassignments" and next(looks, None) is None:
            cluster.end_moves()

    cluster.before_each = progress
    cluster.size = 4_000_000_000
    assert main(planned("execute", plan, "--finish-by", tomorrow, "--between", limits)) == 0
    out = capsys.readouterr().out
    assert f"to end by {tomorrow}: " in out
    assert prospect in out
    assert cluster.throttles == Standing()


def test_verify_takes_a_deadline_up_and_is_alone_in_that(
    cluster: FakeCluster, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(planned("execute", plan, "--throttle", "1MB"))
    capsys.readouterr()
    tomorrow = (datetime.now().astimezone() + timedelta(days=1)).isoformat(timespec="seconds")
    options = ("--watch", "--finish-by", tomorrow, "--between", "2MB,3MB", "--json")
    with JournalFile(plan, "plan0001").locked():
        status, sentence = failing(capsys, *planned("verify", plan, *options))
    assert (status, sentence) == (1, "another `weir move` is at work on this plan, and keeps its throttle.")
    looks = iter(range(20))

    def progress(name: str) -> None:
        if name == "reassignments" and next(looks, None) is None:
            cluster.end_moves()

    cluster.before_each = progress
    assert main(planned("verify", plan, *options)) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (lines[0]["throttle"], lines[0]["finish_by"], lines[0]["seconds_late"]) == (2_000_000, tomorrow, 0)
    assert lines[-1]["done"] is True
    assert cluster.throttles == Standing()


def test_execute_prints_and_keeps_the_way_back(
    cluster: FakeCluster, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(planned("execute", plan, "--throttle", "1MB")) == 0
    out = capsys.readouterr().out
    rollback = plan.with_name("plan.rollback.json")
    assert parse_reassignment(rollback.read_text()).brokers == {P0: (1,), P1: (1, 2)}
    assert rollback.read_text().strip() in out
    assert "1 of 2 partitions began to move." in out
    assert set(cluster.throttles.rates) == {1, 2}


@pytest.mark.parametrize("servers", ["kafka1:9092,", " , kafka1:9092", "PLAINTEXT://kafka1:9092"])
def test_bootstrap_servers_are_read_as_kafkas_clients_read_them(servers: str, cluster: FakeCluster, plan: Path) -> None:
    assert main(["move", "execute", "--reassignment-json-file", str(plan), "--bootstrap-server", servers]) == 0


def test_execute_again_with_a_new_rate_tells_what_has_moved(
    cluster: FakeCluster, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(planned("execute", plan, "--throttle", "1MB"))
    capsys.readouterr()
    assert main(planned("execute", plan, "--throttle", "2MB")) == 0
    captured = capsys.readouterr()
    assert "1 of 2 partitions moved already; no other begins.\n" in captured.out
    assert "the throttle stays" in captured.err


def test_throttle_of_a_done_plan_is_not_set_nor_said_to_stay(
    cluster: FakeCluster, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.replicas[P0] = (2,)
    assert main(planned("execute", plan, "--throttle", "1MB")) == 0
    captured = capsys.readouterr()
    assert "0 of 2 partitions began to move.\n" in captured.out
    assert "stays" not in captured.err


@pytest.mark.parametrize("option", ["--throttle", "--replica-alter-log-dirs-throttle"])
def test_move_that_could_never_end_begins_by_force_only(
    option: str, cluster: FakeCluster, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, sentence = failing(capsys, *planned("execute", plan, option, "0"))
    assert (status, sentence) == (
        2,
        f"{option} 0 lets nothing through, so the move never ends: give a rate, or --force to raise it later.",
    )
    assert not cluster.reassignments()
    assert main(planned("execute", plan, option, "0", "--force")) == 0
    assert cluster.reassignments()


def test_way_back_of_a_plan_given_again_is_the_first_one(cluster: FakeCluster, plan: Path) -> None:
    main(planned("execute", plan, "--throttle", "1MB"))
    cluster.end_moves()
    assert main(planned("execute", plan, "--throttle", "2MB")) == 0
    assert parse_reassignment(plan.with_name("plan.rollback.json").read_text()).brokers[P0] == (1,)


def test_verify_says_what_it_removes_and_then_that_all_is_done(
    cluster: FakeCluster, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(planned("execute", plan, "--throttle", "1MB"))
    capsys.readouterr()
    status, sentence = failing(capsys, *planned("verify", plan))
    assert (status, sentence) == (1, "1 of 2 still moving.")
    cluster.end_moves()
    assert main(planned("verify", plan)) == 0
    out = capsys.readouterr().out
    assert "leader.replication.throttled.replicas" in out
    assert "without 0:1" in out
    assert cluster.throttles == Standing()


def test_verify_says_which_throttle_another_plan_has_left(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two phases the first was never verified (kafka-kit #427)."""
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    for path, move in ((first, {P0: (2,)}), (second, {P1: (2, 3)})):
        path.write_text(format_reassignment(move))
        assert main(planned("execute", path, "--throttle", "1MB")) == 0
        cluster.end_moves()
    capsys.readouterr()
    assert main(planned("verify", second)) == 0
    assert "note: nothing moves, and orders still has throttled replicas that another plan" in capsys.readouterr().err
    assert main(planned("verify", first)) == 0
    assert "note" not in capsys.readouterr().err
    assert cluster.throttles == Standing()


def test_verify_prints_json(cluster: FakeCluster, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(planned("execute", plan))
    cluster.end_moves()
    capsys.readouterr()
    assert main(planned("verify", plan, "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["done"] is True
    assert found["partitions"][0] == {
        "topic": "orders",
        "partition": 0,
        "state": "done",
        "replicas": [2],
        "planned": [2],
    }


def test_watch_shows_progress_until_the_end(
    cluster: FakeCluster, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(planned("execute", plan, "--throttle", "1MB"))
    capsys.readouterr()

    def progress(name: str) -> None:
        if name == "reassignments":
            replica = Replica(*P0, 2)
            cluster.copied[replica] = cluster.copied.get(replica, 0) + 800_000
            if cluster.copied[replica] >= 4_000_000:
                cluster.end_moves()

    cluster.before_each = progress
    assert main(planned("verify", plan, "--watch", "--json")) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[1]["rate"] == pytest.approx(800_000)
    assert lines[1]["slowest"]["broker"] == 2
    assert lines[1]["throttle"] == 1_000_000
    assert lines[-1]["done"] is True


def test_cancel_tells_what_it_ended(cluster: FakeCluster, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(planned("execute", plan, "--throttle", "1MB"))
    capsys.readouterr()
    assert main(planned("cancel", plan)) == 0
    assert "Cancelled: orders-0." in capsys.readouterr().out
    assert cluster.throttles == Standing()


def test_cancel_that_is_refused_says_why_and_what_may_be_done(
    cluster: FakeCluster, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(planned("execute", plan, "--throttle", "1MB"))
    capsys.readouterr()
    cluster.refuses = {P0: "the partition has no leader"}
    assert main(planned("cancel", plan)) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("Nothing was cancelled.")
    assert captured.err == "weir: orders-0: the partition has no leader.\n"
    cluster.alive = {2, 3}
    assert main(planned("cancel", plan)) == 1
    assert (
        "orders-0: the partition has no leader (brokers 1, which had it before, are down: start one of them, or let one"
        " of the new brokers lead it by kafka-leader-election --election-type unclean, which loses what it has not"
        " copied, and execute the plan again)"
    ) in capsys.readouterr().err


def test_list_prints_what_moves(cluster: FakeCluster, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["move", "list", *SERVER]) == 0
    assert capsys.readouterr().out == "Nothing is moving.\n"
    main(planned("execute", plan))
    capsys.readouterr()
    assert main(["move", "list", *SERVER, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "orders", "partition": 0, "replicas": [2, 1], "adding_replicas": [2], "removing_replicas": [1]}
    ]


def test_generate_says_whose_bytes_are_not_known(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = tmp_path / "topics.json"
    topics.write_text('{"topics": [{"topic": "orders"}]}')
    words = ["move", "generate", "--topics-to-move-json-file", str(topics), *SERVER, "--broker-list", "2,3"]
    cluster.leaderless = {P0}
    assert main(words) == 0
    note = "note: nobody leads orders-0: what they hold is not known, and not counted below.\n"
    assert note in capsys.readouterr().err


def test_generate_says_what_a_plan_costs(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics, out = tmp_path / "topics.json", tmp_path / "out.json"
    topics.write_text('{"topics": [{"topic": "orders"}]}')
    words = ["move", "generate", "--topics-to-move-json-file", str(topics), *SERVER]
    assert main([*words, "--broker-list", "2,3", "--throttle", "1MB", "--in", "0", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "2 of the cluster's 2 partitions move (MoveRatio 1), 8 MB in all." in text
    assert "Under 1 MB/s it takes 8 s beside 0 B/s of bytes in, for broker 1 has most to do." in text
    assert set(parse_reassignment(out.read_text()).brokers) == {P0, P1}
    status, sentence = failing(capsys, *words, "--broker-list", "2,9")
    assert (status, sentence) == (1, "there is no broker 9, or it is down.")
    status, sentence = failing(capsys, *words, "--broker-list", "2,2")
    assert (status, sentence) == (2, "--broker-list: a broker is named twice: 2.")
    topics.write_text('{"topics": [{"topic": "none"}]}')
    status, sentence = failing(capsys, *words, "--broker-list", "2")
    assert (status, sentence) == (1, "there is no topic none.")
