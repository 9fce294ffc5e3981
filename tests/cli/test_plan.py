# SPDX-License-Identifier: Apache-2.0
"""`weir plan`: the question both ways, the source of every figure, and what would do when it is impossible."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.cli.commands import failing
from tests.cli.plans import ASK, MB, NO_NETWORK, answer, values
from weir.cli.main import main

pytestmark = pytest.mark.usefixtures("late_evening")


def refused(capsys: pytest.CaptureFixture[str], command: str) -> str:
    """Run a command that asks for the impossible; return its one sentence."""
    assert main(shlex.split(command)) == 1
    captured = capsys.readouterr()
    assert "quota above" in captured.out  # the figures that make it impossible
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("weir: ").strip()


# Both ways


def test_quota_gives_the_time_and_every_figure_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*shlex.split(ASK), "--quota", "50MB/s"]) == 0
    rows = [re.split(r" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()[3:-1]]
    assert rows == [
        ["replication factor", "3", "--replication"],
        ["brokers", "10", "--brokers"],
        ["move ratio", "0.1", "--move-ratio"],
        ["log size per broker", "2 TB", "--size"],
        ["bytes to move", "2 TB", "computed: move ratio x log size per broker x brokers (KIP-73, Q&A 1)"],
        ["bytes in", "20 MB/s", "--in"],
        ["network", "125 MB/s", "--network 1Gb/s"],
        ["quota above", "20 MB/s", "computed: bytes in < quota (KIP-73, Q&A 4)"],
        [
            "quota below",
            "118.3 MB/s",
            "computed: quota < network - bytes in / replication factor (KIP-73, Q&A 4)",
        ],
        ["quota", "50000000 bytes/s (50 MB/s)", "--quota"],
        ["move time", "18 h 32 min", "computed: bytes to move / (quota - bytes in) (KIP-73, Q&A 1)"],
        ["done at", "2026-11-22 16:32+01:00", "computed: now + move time"],
        ["quota window", "11 s", "computed: 11 (Kafka's default) x 1 s (Kafka's default)"],
        ["response max bytes", "10.49 MB", "Kafka's default"],
        [
            "response max bytes below",
            "137.5 MB",
            "computed: window x min(quota x brokers, network) / brokers (KIP-73, Q&A 5)",
        ],
    ]


def test_time_gives_the_least_quota(capsys: pytest.CaptureFixture[str]) -> None:
    """2 TB / 8 h + 20 MB/s."""
    found = answer(capsys, f"{ASK} --within 8h")
    assert found["possible"] is True
    assert values(found)["quota"] == 89_444_445
    assert 28_799 < values(found)["move_time"] <= 28_800
    assert found["figures"]["quota"]["source"] == "computed: bytes to move / time allowed + bytes in (KIP-73, Q&A 1)"


def test_time_of_day_is_the_next_here(capsys: pytest.CaptureFixture[str]) -> None:
    """From 22:00 to 06:00 it is 8 h."""
    found = answer(capsys, f"{ASK} --by 06:00")
    assert values(found)["quota"] == 89_444_445
    assert values(found)["time_allowed"] == 28_800
    assert values(found)["deadline"] == values(found)["done_at"] == "2026-11-22 06:00+01:00"


def test_quota_is_held_to_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert values(answer(capsys, f"{ASK} --quota 90MB --within 8h"))["quota"] == 90 * MB


def test_neither_gives_the_fastest_move(capsys: pytest.CaptureFixture[str]) -> None:
    found = values(answer(capsys, ASK))
    assert found["quota"] == 118_333_333
    assert found["move_time"] == pytest.approx(2e12 / 98_333_333)


def test_neither_and_no_network_gives_bounds_and_asks_for_more(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a quota nor a time is given."""
    found = answer(capsys, NO_NETWORK)
    assert values(found)["quota_above"] == 20 * MB
    assert found["figures"]["quota_below"] == {
        "value": None,
        "unit": "bytes/s",
        "source": "quota < network - bytes in / replication factor: give --network",
    }
    assert "--quota" in found["notes"][0]
    assert "quota" not in found["figures"]


def test_move_ratio_may_come_from_the_partitions(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(
        capsys, "plan --size 2TB --brokers 10 --partitions-to-move 50 --partitions 500 --in 20MB --quota 50MB"
    )
    assert values(found)["move_ratio"] == 0.1
    assert values(found)["bytes_to_move"] == 2e12


def test_broker_alone_moves_all_of_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "plan --size 2TB --broker 3 --in 20MB --quota 50MB")
    assert values(found)["bytes_to_move"] == 2e12
    assert "brokers" not in found["figures"]


def test_default_replication_factor_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, f"{NO_NETWORK} --quota 50MB")
    assert found["figures"]["replication_factor"] == {"value": 3, "unit": "count", "source": "default"}


@pytest.mark.parametrize(
    ("options", "bound", "noted"),
    [
        ("--quota 1MB --window-num 10", 10 * MB, True),  # 10 MiB is the default
        ("--quota 1MB", 11 * MB, False),
        ("--quota 1MB --window-num 5 --window-size-seconds 2 --response-max-bytes 9MB", 10 * MB, False),
        ("--quota 1MB --window-num 10 --network 100MB/s --response-max-bytes 2MB", 2 * MB, True),
    ],
)
def test_response_max_bytes_at_its_bound_is_noted(
    capsys: pytest.CaptureFixture[str], options: str, bound: int, noted: bool
) -> None:
    """KIP-73's Q&A 5, with 500 brokers."""
    found = answer(capsys, f"plan --size 1GB --brokers 500 --move-ratio 0.1 --in 0 {options}")
    assert values(found)["response_max_bytes_below"] == bound
    assert bool(found["notes"]) is noted


def test_notes_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("plan --size 1GB --broker 1 --in 0 --quota 500k")) == 0
    assert capsys.readouterr().err == (
        "note: replica.fetch.response.max.bytes is not below its bound: under Kafka's own throttle and the policy kip73"
        " the first fetches alone can exceed 500 kB/s for a whole window.\n"
    )


def test_move_of_ages_is_done_after_the_calendar(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "plan --size 2TB --broker 1 --in 0 --quota 1")
    assert values(found)["done_at"] == "after the year 9999"


# The impossible


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (
            f"{ASK} --quota 20MB",
            "a quota of 20 MB/s is not above the 20 MB/s that keeping up with bytes in takes, so the move would never"
            " end; more than 20000000 bytes/s (20 MB/s) would do, and at 118333333 bytes/s (118.3 MB/s) it takes"
            " 5 h 39 min, the shortest there is room for.",
        ),
        (
            f"{NO_NETWORK} --quota 15MB",
            "a quota of 15 MB/s is not above the 20 MB/s that keeping up with bytes in takes, so the move would never"
            " end; more than 20000000 bytes/s (20 MB/s) would do.",
        ),
        (
            f"{ASK} --quota 120MB",
            "a quota of 120 MB/s leaves clients no room on a network of 125 MB/s; less than 118333334 bytes/s"
            " (118.3 MB/s) would do, and at 118333333 bytes/s (118.3 MB/s) it takes 5 h 39 min, the shortest there is"
            " room for.",
        ),
        (
            f"{ASK} --quota 50MB --within 8h",
            "under 50 MB/s the move takes 18 h 32 min, and not 8 h; 89444445 bytes/s (89.44 MB/s) would do.",
        ),
        (
            f"{ASK} --quota 20MB --within 8h",
            "a quota of 20 MB/s is not above the 20 MB/s that keeping up with bytes in takes, so the move would never"
            " end; 89444445 bytes/s (89.44 MB/s) would do.",
        ),
        (
            f"{ASK} --quota 200MB --within 8h",
            "a quota of 200 MB/s leaves clients no room on a network of 125 MB/s; 89444445 bytes/s (89.44 MB/s) would"
            " do.",
        ),
        *(
            (
                f"{ASK} --quota {quota} --within 1h",
                "to move 2 TB within 1 h takes a quota of 575.6 MB/s, and the network has room for less than"
                " 118.3 MB/s; 5 h 39 min under 118333333 bytes/s (118.3 MB/s) would do, or moving 353.9 GB at most.",
            )
            for quota in ("20MB", "50MB", "200MB")
        ),
        (
            f"{ASK} --within 1h",
            "to move 2 TB within 1 h takes a quota of 575.6 MB/s, and the network has room for less than 118.3 MB/s;"
            " 5 h 39 min would do, or moving 353.9 GB at most.",
        ),
        (
            f"{ASK} --by 23:00",
            "to move 2 TB within 1 h takes a quota of 575.6 MB/s, and the network has room for less than 118.3 MB/s;"
            " 5 h 39 min (by 2026-11-22 03:39+01:00) would do, or moving 353.9 GB at most.",
        ),
        (
            f"{NO_NETWORK} --network 26MB/s --within 1h",
            "bytes in of 20 MB/s leave no room for any quota on a network of 26 MB/s: none both keeps up with them and"
            " leaves clients room; a network of more than 26666668 bytes/s (26.67 MB/s) would do.",
        ),
    ],
)
def test_impossible_ask_says_why_and_what_would_do(capsys: pytest.CaptureFixture[str], ask: str, sentence: str) -> None:
    assert refused(capsys, ask) == sentence


@pytest.mark.parametrize(
    "possible",
    [
        f"{ASK} --quota 20000001",
        f"{ASK} --quota 118333333",
        f"{ASK} --quota 89444445 --within 8h",
        f"{ASK} --quota 118333333 --within '5 h 39 min'",
        "plan --size 353.9GB --brokers 1 --move-ratio 1 --in 20MB --network 1Gb/s --quota 118333333 --within 1h",
        f"{ASK} --within '5 h 39 min'",
        f"{ASK} --by '2026-11-22 03:39+01:00'",
        "plan --size 353.9GB --brokers 1 --move-ratio 1 --in 20MB --network 1Gb/s --within 1h",
        f"{NO_NETWORK} --network 26666669 --quota 20000001",
    ],
)
def test_what_would_do_does(capsys: pytest.CaptureFixture[str], possible: str) -> None:
    """The quotas and times that refusals propose are possible."""
    assert main(shlex.split(possible)) == 0


def test_impossible_ask_in_json_has_reasons_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, f"{ASK} --within 1h", status=1)
    assert found["possible"] is False
    assert found["why"].startswith("to move 2 TB within 1 h")
    assert found["would_do"].startswith("5 h 39 min")
    assert found["would_do_values"] == {
        "quota": 118_333_333,
        "seconds": 339 * 60,
        "bytes_to_move": 353_900_000_000,
    }
    assert values(found)["quota_below"] == pytest.approx(118_333_333.3)


# Wrong usage


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("plan --in 1", "--size is missing"),
        ("plan --size 1TB --move-ratio 0.1 --in 1", "--brokers is missing"),
        ("plan --size 1TB --brokers 3 --in 1", "--move-ratio is missing"),
        ("plan --size 1TB --broker 3", "--in is missing"),
        ("plan --size 0 --broker 3 --in 1", "nothing to move"),
        (f"{ASK} --within 8h --by 06:00", "--within or --by, not both"),
        (f"{ASK} --partitions 8", "go together"),
        (f"{ASK} --partitions 8 --partitions-to-move 1", "not both"),
        ("plan --size 1TB --brokers 3 --move-ratio 1.5 --in 1", "a move ratio of 1.5 is"),
        ("plan --size 1TB --brokers 3 --move-ratio nan --in 1", "a move ratio of nan is"),
        ("plan --size 1TB --brokers 3 --partitions 8 --partitions-to-move 9 --in 1", "a move ratio of 1.125 is"),
        ("plan --size 1TB/s --broker 3 --in 1", "--size: '1TB/s' is not a size"),
        (f"{ASK} --quota fast", "--quota: 'fast' is not a rate"),
        (f"{ASK} --within soon", "--within: 'soon' is not a time"),
        (f"{ASK} --by 2020-01-01", "--by: '2020-01-01' is over"),
        (f"{NO_NETWORK} --network wide", "--network: 'wide' is not"),
        (f"{ASK} --retention 7d", "--retention needs --history"),
        (f"{ASK} --policy loose", "--policy: 'loose' is not"),
        (f"{ASK} --history /nowhere/at/all", "--history: /nowhere/at/all is no folder"),
        (f"{ASK} --broker 3", "give --broker, which moves all data of that broker, or a share"),
        ("plan --size 1TB --broker 3 --in 1 --partitions-to-move 1 --partitions 8", "give --broker, which moves"),
        (f"{ASK} --brokers 0", "--brokers"),
        ("plan --size 1TB --broker -1 --in 1", "--broker"),
        (f"{ASK} --quota 50MB --window-num 1{'0' * 400}", "--window-num"),
        (f"{ASK} --quota 50MB --window-size-seconds 1{'0' * 400}", "--window-size-seconds"),
    ],
)
def test_wrong_usage_is_one_sentence(capsys: pytest.CaptureFixture[str], command: str, sentence: str) -> None:
    status, error = failing(capsys, *shlex.split(command))
    assert status == 2
    assert sentence in error
