#!/usr/bin/env python3
"""A way round a dead sidecar: every route of its file is relayed as it is, unthrottled, until this is stopped.

    python3 way_round.py /etc/weir/weir.toml

It needs Python 3.11 and systemd's systemd-socket-proxyd, and nothing of weir. Each listener of the file gets a relay of
its own to the route's upstream. Ctrl-C or SIGTERM ends all of them.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

PROXIES = ("/lib/systemd/systemd-socket-proxyd", "/usr/lib/systemd/systemd-socket-proxyd")
MOST_CONNECTIONS = 4096  # of one route


def main(arguments: list[str]) -> int:
    """Relay the routes of a sidecar's file until a signal, or until one relay ends. Returns the exit status."""
    activate = shutil.which("systemd-socket-activate")
    proxy = next((path for path in PROXIES if Path(path).exists()), None)
    if len(arguments) != 1 or activate is None or proxy is None:
        why = (
            "the sidecar's file is missing"
            if len(arguments) != 1
            else "systemd's socket-activate or socket-proxyd is not installed"
        )
        return _failed(f"{why}. Usage: way_round.py /etc/weir/weir.toml", 2)
    config = tomllib.loads(Path(arguments[0]).read_text())
    routes = [*config.get("ingress", []), *config.get("egress", [])]
    if not routes:
        return _failed(
            "the file has no [[ingress]] and no [[egress]]: with [capture] the kernel leads past a dead sidecar.", 2
        )
    for route in routes:
        if ("tls" in route) != ("upstream_tls" in route):
            return _failed(f"{route['listen']} has TLS at one end only, which this relay cannot do.", 2)
    if "tls" in config:
        print("[tls] is left out: sidecars that require it refuse these connections.", file=sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    relays = []
    try:
        for route in routes:
            command = [
                activate,
                "-l",
                route["listen"],
                proxy,
                f"--connections-max={MOST_CONNECTIONS}",
                route["upstream"],
            ]
            relay = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603 - the operator's own file
            relays.append((route, relay))
            print(f"{route['listen']} -> {route['upstream']}", flush=True)
        while True:
            for route, relay in relays:
                if relay.poll() is not None:
                    said = relay.stderr.read().strip().splitlines()[-1:] if relay.stderr else []
                    return _failed(
                        f"the relay at {route['listen']} ended ({''.join(said)}). Is the sidecar still alive?", 1
                    )
            time.sleep(0.2)
    except KeyboardInterrupt:
        return 0
    finally:
        for _, relay in relays:
            relay.terminate()
        for _, relay in relays:
            relay.wait()


def _failed(sentence: str, status: int) -> int:
    print(f"way_round: {sentence}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
