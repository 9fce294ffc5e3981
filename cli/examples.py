# SPDX-License-Identifier: Apache-2.0
"""Examples of the commands. Each one's help ends with its own."""

from __future__ import annotations

from typing import Final

import typer

_PLAN: Final = "--bootstrap-server kafka1:9092 --reassignment-json-file plan.json"
_SIZES: Final = "--size 2TB --brokers 10 --move-ratio 0.1 --in 20MB/s --network 1Gb/s"

EXAMPLES: Final = {
    "run": (
        "weir run --config /etc/weir/weir.toml",
        "weir run --wait --config /etc/weir/weir.toml",
        "weir run --capture 9092 --bootstrap-server kafka1:9092",
    ),
    "check": ("weir check --config /etc/weir/weir.toml", "weir check --live /etc/weir/weir.toml"),
    "doctor": ("weir doctor", "weir doctor /etc/weir/weir.toml"),
    "status": ("weir status", "weir status --bootstrap-server kafka1:9092"),
    "plan": (
        f"weir plan {_SIZES} --quota 50MB/s",
        "weir plan --broker 3 --bootstrap-server kafka1:9092 --network 10Gb/s --within 8h",
    ),
    "webhook": ("weir webhook --sidecar sidecar.json --certificate tls.crt --key tls.key",),
    "throttle show": ("weir throttle show --bootstrap-server kafka1:9092",),
    "throttle set": (
        "weir throttle set --leader-rate 10MB --for 2h --reason 'adding broker 4'",
        "weir throttle set --topic orders --leader-replicas '*' --bootstrap-server kafka1:9092",
    ),
    "throttle clear": ("weir throttle clear", "weir throttle clear --stale --bootstrap-server kafka1:9092"),
    "limits show": ("weir limits show --bootstrap-server kafka1:9092",),
    "limits set": (
        "weir limits set --client-id 'connector-consumer-*' --per connector --records 1000",
        "weir limits set --client-id mirror --bytes 5MB --for 2h --reason 'reindexing'",
    ),
    "limits clear": ("weir limits clear --client-id mirror --bootstrap-server kafka1:9092",),
    "move generate": (
        "weir move generate --bootstrap-server kafka1:9092 --topics-to-move-json-file topics.json --broker-list 1,2,3"
        " --out plan.json",
    ),
    "move execute": (f"weir move execute {_PLAN} --throttle 50MB",),
    "move verify": (f"weir move verify {_PLAN} --watch",),
    "move cancel": (f"weir move cancel {_PLAN}",),
    "move list": ("weir move list --bootstrap-server kafka1:9092",),
    "capture show": ("weir capture show --config /etc/weir/weir.toml",),
    "capture pause": (
        "weir capture pause --for 10m --reason 'is it weir?'",
        "weir capture pause --bootstrap-server kafka1:9092",
    ),
    "capture resume": ("weir capture resume --bootstrap-server kafka1:9092",),
    "capture remove": ("weir capture remove --broker-id 1",),
    "report build": (
        "weir report build --input /var/lib/weir/samples --output /var/lib/weir/tables --from 2026-11-02"
        " --to 2026-11-09",
    ),
    "report show": (
        "weir report show --input /var/lib/weir/tables --from 2026-11-02 --timezone Europe/Berlin",
        "weir report show --input /var/lib/weir/tables --json",
    ),
    "report html": ("weir report html --input /var/lib/weir/tables --output report.html",),
    "demo": ("weir demo --fast", "weir demo --connect --out charts"),
}


def add_examples(app: typer.Typer, group: str = "") -> None:
    """Have the help of each command of `app`, and of those in its groups, end with its examples."""
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        command.epilog = "\n\n".join(f"Example:  {line}" for line in EXAMPLES[f"{group}{name}"])
    for below in app.registered_groups:
        if below.typer_instance is not None:
            add_examples(below.typer_instance, f"{below.name} ")
