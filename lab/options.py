# SPDX-License-Identifier: Apache-2.0
"""What a cluster of the lab is made with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weir.lab.settings import Route, SidecarOptions, Throttle


def weir_run(config: Path) -> list[str]:
    """Return the command line of a sidecar."""
    return [sys.executable, "-m", "weir", "run", "--config", str(config)]


def _on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class LabOptions:
    """The options that every cluster takes.

    - `brokers`: how many, with ids 1, 2, ...
    - `sidecars`, `routes`: sidecars=True gives every broker both roles; `routes` says it for all or for each broker id.
    - `throttle`, `policy`, `poll_isr`, `sidecar_tables`: what the sidecars are told, see SidecarOptions.
    - `properties`, `broker_properties`: broker properties for all, and by broker id; they win over the lab's own.
    - `heap_mb`: -Xmx of each broker in MiB; `jvm_flags` are further flags.
    - `sidecar_command`: builds a sidecar's command line from its configuration file; weir_run unless others are tested.
    - `show`: where a line on progress or on a failure goes (stderr).
    """

    brokers: int = 3
    sidecars: bool = False
    routes: Route | Mapping[int, Route] | None = None
    throttle: Throttle | Mapping[int, Throttle] | None = None
    policy: str | None = None
    poll_isr: bool = False
    sidecar_tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    properties: Mapping[str, object] = field(default_factory=dict)
    broker_properties: Mapping[int, Mapping[str, object]] = field(default_factory=dict)
    heap_mb: int = 384
    jvm_flags: Sequence[str] = ()
    sidecar_command: Callable[[Path], list[str]] = weir_run
    sidecar_env: Mapping[str, str] = field(default_factory=dict)
    show: Callable[[str], None] = _on_stderr

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The brokers' ids."""
        return tuple(range(1, self.brokers + 1))

    @property
    def told_sidecars(self) -> SidecarOptions:
        """What the sidecars are told."""
        return SidecarOptions(
            policy=self.policy, throttle=self.throttle, poll_isr=self.poll_isr, tables=self.sidecar_tables
        )

    def route(self, broker_id: int) -> Route:
        """Return which traffic of a broker goes through its sidecar."""
        if isinstance(self.routes, Mapping):
            return self.routes.get(broker_id, Route.NONE)
        if self.routes is not None:
            return self.routes
        return Route.BOTH if self.sidecars else Route.NONE
