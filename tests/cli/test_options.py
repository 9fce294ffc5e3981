# SPDX-License-Identifier: Apache-2.0
"""Option objects, as typer sees them."""

from dataclasses import MISSING, dataclass

import pytest
import typer

from weir.cli.options import option, with_options
from weir.cli.sidecars import JsonOption


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    count: int = option("--count", "N", "How many.", 3, min=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    name: str = option("--name", "NAME", "Who.", MISSING)
    inner: Inner
    loud: bool = option("--loud", None, "Say it loud.", False)


@pytest.fixture
def given() -> list[object]:
    return []


@pytest.fixture
def app(given: list[object]) -> typer.Typer:
    def say(*, outer: Outer, json_wanted: JsonOption = False) -> int:
        """Say it."""
        given.append((outer, json_wanted))
        return 0

    found = typer.Typer()
    found.command()(with_options(say))
    return found


def test_command_gets_its_objects_with_given_and_default_values(app: typer.Typer, given: list[object]) -> None:
    app(["--name", "orders", "--loud"], standalone_mode=False)
    app(["--json", "--count", "0", "--name", "live"], standalone_mode=False)
    assert given == [
        (Outer(name="orders", inner=Inner(count=3), loud=True), False),
        (Outer(name="live", inner=Inner(count=0), loud=False), True),
    ]


@pytest.mark.parametrize("words", [[], ["--name", "orders", "--count", "-1"], ["--name", "orders", "--count", "few"]])
def test_option_of_an_object_is_checked_like_any_other(app: typer.Typer, given: list[object], words: list[str]) -> None:
    with pytest.raises(typer.BadParameter.__mro__[1]):  # the base class of typer's usage errors
        app(words, standalone_mode=False)
    assert given == []


def test_help_shows_options_in_the_order_of_their_fields(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    app(["--help"], standalone_mode=False)
    text = capsys.readouterr().out
    places = [text.index(said) for said in ("Say it.", "--name", "Who.", "--count", "--loud", "--json")]
    assert places == sorted(places)
