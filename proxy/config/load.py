# SPDX-License-Identifier: Apache-2.0
"""Loads the configuration file, and says in one sentence what is wrong with it."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from weir.proxy.config.address import Address
from weir.proxy.config.client_limits import check_client_limits
from weir.proxy.config.keys import AdminKeys, RouteKeys, connection_options
from weir.proxy.config.plugins import load_limiters
from weir.proxy.config.reader import ConfigError, read_table, shown
from weir.proxy.config.route_checks import check_capture, check_routes
from weir.proxy.config.tables import Admin, CaptureTable, Cluster, Config, Export, Ingress
from weir.proxy.config.throttle import check_throttle

OwnBroker = Callable[[int, Cluster], int]
"""Gives the id of the one broker that listens at a port of this machine, as the cluster says."""

_FROM_ENVIRONMENT = re.compile(r"env:([A-Za-z_]\w*)(?:\+(\d{1,10}))?")


def load_config(path: Path, own_broker: OwnBroker | None = None) -> Config:
    """Read and check a configuration file; ConfigError, with `file`, says what is wrong with it.

    `own_broker` is asked for a `broker_id` that the file leaves out beside `[capture]` and `[cluster]`.

    Host names are resolved where a route may loop, so call it outside an event loop.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError("", f"cannot be read: {error.strerror}", str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("", f"is not UTF-8: byte {error.start} is wrong", str(path)) from error
    try:
        return parse_config(text, own_broker)
    except ConfigError as error:
        raise ConfigError(error.field, error.reason, str(path)) from error


def parse_config(text: str, own_broker: OwnBroker | None = None) -> Config:
    """Read and check the text of a configuration file, as `load_config` does the file."""
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("", f"is not TOML: {error}") from error
    except RecursionError:
        raise ConfigError("", "is nested too deeply") from None
    except ValueError as error:  # raised for an integer of thousands of digits
        raise ConfigError("", f"is not TOML: {error}") from error
    if isinstance(told := plain.get("broker_id"), str):
        plain["broker_id"] = broker_id_of(told)
    if own_broker is not None and "broker_id" not in plain and {"capture", "cluster"} <= set(plain):
        port = read_table(CaptureTable, plain["capture"], "capture").port
        plain["broker_id"] = own_broker(port, read_table(Cluster, plain["cluster"], "cluster"))
    load_limiters(_limiters_named_in(plain))
    config = read_table(Config, plain)
    check_config(config)
    return config


def _limiters_named_in(plain: Mapping[str, Any]) -> Iterator[str]:
    """Yield the limiters that a file names. What has another form is left to the reader, which says what is wrong."""
    limits = plain.get("limits")
    entries = limits.get("client") if isinstance(limits, Mapping) else None
    for entry in entries if isinstance(entries, list) else ():
        names = entry.get("rate.limiters") if isinstance(entry, Mapping) else None
        yield from (name for name in (names if isinstance(names, list) else ()) if isinstance(name, str))


def broker_id_of(text: str, environment: Mapping[str, str] = os.environ) -> int:
    """Return the number at the end of a variable, as a pod's name has it: `env:POD_NAME`, or `env:POD_NAME+100`.

    ConfigError where the text is of another form, or the variable has no such number.
    """
    if (asked := _FROM_ENVIRONMENT.fullmatch(text)) is None:
        raise ConfigError("broker_id", f'must be an integer, or a variable as in "env:POD_NAME", not {shown(text)}')
    name, more = asked.groups()
    if (value := environment.get(name)) is None:
        raise ConfigError("broker_id", f"is to come from the variable {name}, and the environment has none")
    if (number := re.search(r"[0-9]{1,10}\Z", value)) is None:
        raise ConfigError("broker_id", f"is the number at the end of {name}, and {shown(value)} ends with none")
    return int(number[0]) + int(more or 0)


def check_config(config: Config) -> None:
    """Check what no single field shows; ConfigError names the field."""
    check_routes(config)
    _check_admin(config.admin, config.strict_tls)
    _check_replicas_from(config.ingress)
    RouteKeys(config)
    if config.cluster is not None:
        _check_servers("cluster.bootstrap_servers", config.cluster.bootstrap_servers)
        connection_options(config.cluster, strict=config.strict_tls)
    check_capture(config)
    _check_export(config.export, config.strict_tls)
    check_client_limits(config.limits.client, "limits.client")
    check_throttle(config.throttle, config.cluster, "throttle")


def _check_admin(admin: Admin, strict_tls: bool) -> None:
    if admin.tls is not None:
        AdminKeys(admin.tls, strict=strict_tls)
        return
    if admin.listen.is_loopback or admin.without_tokens:
        return
    for name, file in (("read_token_file", admin.read_token_file), ("write_token_file", admin.write_token_file)):
        if file is None:
            reason = (
                "is missing: others than this machine reach admin.listen; name a file, or set [admin.tls],"
                " or without_tokens = true"
            )
            raise ConfigError(f"admin.{name}", reason)


def _check_replicas_from(ingress: tuple[Ingress, ...]) -> None:
    for index, route in enumerate(ingress):
        if route.replicas_from == ():
            reason = 'is empty: no replica would be throttled; leave it out, or name networks ("0.0.0.0/0": anyone)'
            raise ConfigError(f"ingress[{index}].replicas_from", reason)


def _check_servers(field: str, servers: tuple[Address, ...]) -> None:
    if not servers:
        raise ConfigError(field, "is empty: name at least one broker")
    for server in servers:
        if server.port == 0:
            raise ConfigError(field, f"{server} has port 0: a server's port must be given")


def _check_export(export: Export | None, strict_tls: bool) -> None:
    if export is None:
        return
    if export.directory is None and export.kafka is None:
        raise ConfigError("export", "leads nowhere: set export.directory or [export.kafka]")
    if export.max_disk_bytes < 2 * export.rotate_bytes:
        needed = f"twice rotate_bytes ({2 * export.rotate_bytes})"
        raise ConfigError("export.max_disk_bytes", f"must be at least {needed}, not {export.max_disk_bytes}")
    if export.kafka is not None:
        _check_servers("export.kafka.bootstrap_servers", export.kafka.bootstrap_servers)
        connection_options(export.kafka, strict=strict_tls)
