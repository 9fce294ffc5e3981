# SPDX-License-Identifier: Apache-2.0
"""`weir move`: plans moves of partitions and carries them out, with kafka-reassign-partitions' files and options."""

from __future__ import annotations

import typer

from weir.cli.move_execute import execute
from weir.cli.move_generate import generate
from weir.cli.move_verify import cancel, list_moves, verify
from weir.cli.options import with_options

app = typer.Typer(help="Move partitions between brokers under a throttle that is put back afterwards.")
app.command("generate")(with_options(generate))
app.command("execute")(with_options(execute))
app.command("verify")(with_options(verify))
app.command("cancel")(with_options(cancel))
app.command("list")(with_options(list_moves))
