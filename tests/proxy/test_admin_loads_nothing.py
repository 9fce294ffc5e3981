# SPDX-License-Identifier: Apache-2.0
"""Whatever a change over HTTP names, nothing is imported or called for it."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from tests.limits.limiters import Scripted
from tests.proxy.administered import Client, Sidecar
from weir.limits.rate_limiter import Option
from weir.proxy.config import plugins
from weir.proxy.config.limiters import KNOWN
from weir.proxy.config.load import parse_config
from weir.proxy.config.reader import ConfigError
from weir.proxy.expiry import Setting

HARMFUL = ("os.abort", "os.fork", "signal.pause", "logging.disable", "canary_of_weir.Limiter", "builtins.exit", "a.b.c")
FILE = 'broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:1"\nupstream = "127.0.0.1:2"\n'


class Theirs(Scripted):
    """A limiter of somebody else's; `made` counts its objects."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1

    def config(self) -> list[Option]:
        return [Option("their.rate", float, "records/s", least=1)]


@pytest.fixture(autouse=True)
def canary(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module, known = types.ModuleType("canary_of_weir"), dict(KNOWN)
    vars(module).update(Limiter=Theirs)
    monkeypatch.setitem(sys.modules, "canary_of_weir", module)
    monkeypatch.setattr(Theirs, "made", 0)
    yield
    KNOWN.clear()
    KNOWN.update(known)


def refuse_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*args: object) -> NoReturn:
        raise AssertionError(f"the importer was reached: {args}")

    monkeypatch.setattr(importlib, "import_module", reached)
    monkeypatch.setattr(plugins, "load_limiters", reached)
    monkeypatch.setattr(plugins, "entry_points", reached)


@pytest.mark.parametrize("name", HARMFUL)
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_limiter_that_no_file_names_is_refused_over_http(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    name: str,
) -> None:
    refuse_imports(monkeypatch)
    before = set(sys.modules)
    status, body = await client.call(method, "/v1/limits", {"client": [{"client_id": "a", "rate.limiters": [name]}]})
    assert (status, body["field"]) == (400, "client[0].rate.limiters")
    assert f'"{name}" is not known here' in body["error"]
    assert (Theirs.made, set(sys.modules), client.sidecar.client_limits.tables) == (0, before, ())


def test_no_name_of_the_standard_library_reaches_the_importer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are imported already, too: each is callable, and some of them end the process."""
    limits, before = Sidecar().client_limits, set(sys.modules)
    refuse_imports(monkeypatch)
    names = [f"{module}.anything" for module in sys.stdlib_module_names]
    for module in ("os", "sys", "signal", "logging", "subprocess", "builtins", "posix", "gc", "faulthandler"):
        names += [f"{module}.{name}" for name in dir(sys.modules.get(module))]
    for name in names:
        entry = {"client_id": "a", "rate.limiters": [name]}
        for change in (limits.patch, limits.replace):
            with pytest.raises(ConfigError, match="not known here"):
                change({"client": [entry]})
        with pytest.raises(ConfigError, match="not known here"):
            limits.take_over([Setting(path=("a", "task"), value=entry)])
    assert (limits.tables, set(sys.modules)) == ((), before)


def test_limiter_of_the_file_is_known_over_http_and_not_made_for_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    parse_config(f'{FILE}[[limits.client]]\nclient_id = "a"\n"rate.limiters" = ["canary_of_weir.Limiter"]\n')
    made, limits = Theirs.made, Sidecar().client_limits
    refuse_imports(monkeypatch)
    entry = {"client_id": "b", "rate.limiters": ["canary_of_weir.Limiter"], "their.rate": 5}
    limits.patch({"client": [entry]})
    assert [table.as_plain() for table in limits.tables] == [entry]
    with pytest.raises(ConfigError, match="must be a number from 1"):
        limits.patch({"client": [{**entry, "their.rate": 0}]})
    assert Theirs.made == made


@pytest.mark.parametrize("error", [SystemExit(2), RuntimeError("out of order"), ImportError("gone")])
def test_announced_limiter_that_fails_harms_no_start_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    class Point:
        name = "theirs"
        error: BaseException | None = None

        def load(self) -> Any:
            if self.error is not None:
                raise self.error
            return Theirs

    point = Point()
    point.error = error
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    parse_config(FILE)
    limits, change = Sidecar().client_limits, {"client": [{"client_id": "a", "rate.limiters": ["theirs"]}]}
    with pytest.raises(ConfigError, match=f'"theirs" cannot be loaded: {type(error).__name__}'):
        limits.patch(change)
    point.error = None
    parse_config(FILE)
    limits.patch(change)
    assert [table.rate_limiters for table in limits.tables] == [("theirs",)]
