# SPDX-License-Identifier: Apache-2.0
"""Commands that pages and alerts tell people to type: each is one of weir's, and has the options named."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from weir.cli.app import app, invoke
from weir.cli.errors import DONE
from weir.cli.examples import EXAMPLES

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/*.md")])
ROOT_COMMAND = typer.main.get_command(app)


def told(page: Path) -> list[str]:
    """Every command of weir in a page: in the text between backquotes, and at the beginning of a line of a block."""
    text = page.read_text()
    blocks = re.findall(r"^ *```(?:sh|bash)\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    inline = re.findall(
        r"(?<!`)`(weir [^`]+)`(?!`)", re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    )
    return [*inline, *(line for line in lines if line.startswith("weir "))]


def wrong(command: str) -> str | None:
    """What is wrong with a command, if anything."""
    if "|" in command.split(" --")[0] or "..." in command:
        return None  # several in one: `weir throttle show|set|clear`
    found: Any = ROOT_COMMAND
    takes_value = False
    for word in shlex.split(re.split(" [|>&] ?", command)[0], comments=True)[1:]:
        if takes_value:
            takes_value = False
        elif word.startswith("--"):
            name, has_value, _ = word.partition("=")
            option = next((param for param in found.params if name in param.opts), None)
            if option is None and name != "--help" and not found.context_settings.get("ignore_unknown_options"):
                return f"no option {name}"
            takes_value = option is not None and not option.is_flag and not has_value
        elif (below := getattr(found, "commands", None)) is not None:
            if word not in below:
                return f"no command {word}"
            found = below[word]
        elif all(param.param_type_name == "option" for param in found.params):
            return f"takes no argument {word}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_a_page_tells_are_there(page: Path) -> None:
    found = {command: reason for command in told(page) if (reason := wrong(" ".join(command.split()))) is not None}
    assert found == {}


@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
def test_help_ends_with_examples_that_are_right(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for example in EXAMPLES[name]:
        assert example.startswith(f"weir {name}")
        assert wrong(example) is None
    assert invoke([*name.split(), "--help"]) == DONE
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.endswith(" ".join(f"Example: {line}" for line in EXAMPLES[name]))


def test_every_command_has_examples() -> None:
    commands = ROOT_COMMAND.commands  # type: ignore[attr-defined]
    names = {
        f"{name} {below}".strip() for name, found in commands.items() for below in getattr(found, "commands", [""])
    }
    assert names == set(EXAMPLES)


def test_operations_tells_commands() -> None:
    assert len(told(ROOT / "docs" / "operations.md")) > 20


@pytest.mark.parametrize(
    "command", ["weir chekc", "weir check --life", "weir status weir.toml", "weir throttle forget --admin a:1"]
)
def test_commands_that_are_wrong_are_found(command: str) -> None:
    assert wrong(command) is not None
