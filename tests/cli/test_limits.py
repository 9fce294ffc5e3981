# SPDX-License-Identifier: Apache-2.0
"""`weir limits` against real sidecars."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine

import pytest

from weir.cli.main import main
from weir.proxy.config.load import parse_config
from weir.proxy.sidecar import Sidecar

FILE = """
broker_id = {broker}
[[ingress]]
listen = "127.0.0.1:0"
upstream = "127.0.0.1:1"
[admin]
listen = "127.0.0.1:0"
[[limits.client]]
client_id = "mine"
"byte.rate.limit" = 5000
"""

NONE_LIMITED = "No client is limited. To count records alone: weir limits set --client-id ID --records none\n"

Weir = Callable[..., Coroutine[None, None, tuple[int, str]]]


@pytest.fixture
async def sidecars() -> AsyncIterator[list[Sidecar]]:
    """Two sidecars that limit `mine` to 5 KB/s by their files."""
    running = [Sidecar(parse_config(FILE.format(broker=broker)), "1") for broker in (1, 2)]
    for sidecar in running:
        await sidecar.start()
    yield running
    for sidecar in running:
        await sidecar.close()


@pytest.fixture
def weir(sidecars: list[Sidecar], capsys: pytest.CaptureFixture[str]) -> Weir:
    """Run `weir limits` for both of them; gives the exit status and what was printed."""

    async def run(*words: str) -> tuple[int, str]:
        where = [word for sidecar in sidecars for word in ("--admin", str(sidecar.admin_address))]
        status = await asyncio.to_thread(main, ["limits", *words, *where])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run


async def test_limit_is_set_on_all_sidecars_and_cleared(weir: Weir, sidecars: list[Sidecar]) -> None:
    status, text = await weir("set", "--client-id", "a*", "--per", "connector", "--records", "1000", "--bytes", "1MB")
    assert status == 0
    rows = [line.split() for line in text.splitlines() if " a* " in line]
    wanted = "a* connector record.rate.limit 1,000, byte.rate.limit 1000000 http"
    assert [" ".join(row[1:]) for row in rows] == [wanted, wanted]
    for sidecar in sidecars:
        assert [one.client_id for one in sidecar.client_limits.tables] == ["mine", "a*"]
    await weir("set", "--client-id", "a*", "--per", "connector", "--records", "none")
    assert sidecars[1].client_limits.tables[1].options == {"byte.rate.limit": 1_000_000}
    status, text = await weir("clear")
    assert status == 0
    assert "a*" not in text
    assert text.count("byte.rate.limit 5000") == 2


async def test_limit_that_ends_says_who_and_why(weir: Weir, sidecars: list[Sidecar]) -> None:
    words = ("--client-id", "mine", "--bytes", "9000", "--for", "2h", "--owner", "ann", "--reason", "reindexing")
    status, text = await weir("set", *words)
    assert status == 0
    assert text.count("http, 2 h left, ann: reindexing") == 2
    assert "5000" not in text
    status, text = await weir("clear", "--client-id", "mine", "--json")
    assert [one["limits"] for one in json.loads(text)] == [
        {"client": [{"client_id": "mine", "byte.rate.limit": 5000}]}
    ] * 2


async def test_all_limits_are_removed_by_all_alone(weir: Weir, sidecars: list[Sidecar]) -> None:
    assert await weir("clear", "--all") == (0, NONE_LIMITED)
    assert await weir("show") == (0, NONE_LIMITED)
    assert (await weir("clear"))[1].count("byte.rate.limit 5000") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "--client-id", "a"), "nothing to set"),
        (("set", "--records", "5"), "--client-id"),
        (("set", "--client-id", "a", "--records", "many"), "--records: 'many' is no number"),
        (("set", "--client-id", "a", "--records", "0"), "record.rate.limit"),
        (("set", "--client-id", "a", "--bytes", "5Mb"), "--bytes: '5Mb' may be bits or bytes"),
        (("set", "--client-id", "a", "--bytes", "5", "--reason", "x"), "--for is missing"),
        (("clear", "--all", "--client-id", "a"), "--all cannot be given"),
    ],
)
async def test_wrong_words_change_nothing(
    weir: Weir, sidecars: list[Sidecar], words: tuple[str, ...], said: str
) -> None:
    status, text = await weir(*words)
    assert status == 2
    assert said in text
    for sidecar in sidecars:
        assert [one.client_id for one in sidecar.client_limits.tables] == ["mine"]
