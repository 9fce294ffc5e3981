"""`python -m bench.tls_hop`: a hop with TLS on both ends, of one sidecar beside HAProxy.

One connection, 1 MB answers, all ways in turn, again and again. Each is one process with one thread. The figure that
counts is what a second of its processor moves: client and server take the rest of a small machine, and other programs
disturb what the clock shows. HAProxy missing is said, and is no failure.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers import fetch_request, metadata_request
from bench.processes import running, wait_for
from bench.relay import free_port
from bench.table import Report, parser
from tests.fakes.pki import Authority
from weir.proxy.tls.keys import KeyFiles, load_client_keys, load_server_keys

MB = 10**6
LEAST_OF_HAPROXY = 0.8
_ANSWER_SIZE = 10**6
_DEPTH = 8
_REQUEST = struct.Struct(">ihhi")
_FETCH = 1
_FETCH_ANSWER = struct.Struct(">iiiihciihqi")


@dataclass
class Way:
    """A way to the broker, with what was measured: MB/s, and MB for each second of its processor."""

    name: str
    port: int
    process: subprocess.Popen[bytes] | None = None
    rates: list[float] = field(default_factory=list)
    by_processor: list[float] = field(default_factory=list)

    def processor_seconds(self) -> float:
        """What the process has used so far."""
        if self.process is None:
            return 0.0
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(certificate: str, ca: str) -> None:
    """Print a free port, and answer each request on it with as many bytes as it asks for, until killed."""
    context = load_server_keys(KeyFiles(certificate=certificate, ca=ca), "required").context
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    while True:
        accepted, _ = listening.accept()
        threading.Thread(target=_answer, args=(accepted, context), daemon=True).start()


def _answer(accepted: socket.socket, context: ssl.SSLContext) -> None:
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    records = bytes(_ANSWER_SIZE)
    with contextlib.suppress(OSError), context.wrap_socket(accepted, server_side=True) as connection:
        stream = connection.makefile("rb")
        while head := stream.read(_REQUEST.size):
            size, api_key, _, correlation_id = _REQUEST.unpack(head)
            stream.read(size + 4 - _REQUEST.size)
            if api_key == _FETCH:
                length = _ANSWER_SIZE - _FETCH_ANSWER.size
                begin = _FETCH_ANSWER.pack(_ANSWER_SIZE - 4, correlation_id, 0, 1, 1, b"t", 1, 0, 0, 9, length)
            else:
                begin = struct.pack(">ii", _ANSWER_SIZE - 4, correlation_id)
            connection.sendall(begin + records[len(begin) :])


def measure(way: Way, context: ssl.SSLContext, seconds: float, *, fetch: bool) -> None:
    """Keep some requests under way on one connection."""
    make_request = fetch_request if fetch else metadata_request
    buffer = bytearray(2**18)
    plain = socket.create_connection(("127.0.0.1", way.port))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with context.wrap_socket(plain, server_hostname="localhost") as connection:
        sent = received = 0
        used, started = way.processor_seconds(), time.perf_counter()
        while time.perf_counter() < started + seconds:
            missing = received // _ANSWER_SIZE + _DEPTH - sent
            if missing > _DEPTH // 2:
                connection.sendall(b"".join(make_request(one, _ANSWER_SIZE) for one in range(sent, sent + missing)))
                sent += missing
            received += connection.recv_into(buffer)
        way.rates.append(received / (time.perf_counter() - started) / MB)
        if used := way.processor_seconds() - used:
            way.by_processor.append(received / used / MB)


@contextlib.contextmanager
def ways() -> Iterator[tuple[list[Way], ssl.SSLContext]]:
    """All ways to a server with TLS, with their processes running, and what a client needs."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority = Authority(folder)
        both = authority.issue("localhost").together
        files = KeyFiles(certificate=both, ca=authority.ca)
        code = f"from bench.tls_hop import serve; serve({both!r}, {authority.ca!r})"
        server = stack.enter_context(running(sys.executable, "-c", code))
        assert server.stdout is not None
        upstream = int(server.stdout.readline())
        found = [Way("direct", upstream)]
        for loop in ("asyncio", "uvloop"):
            port, config = free_port(), folder / f"{loop}.toml"
            config.write_text(
                f'broker_id = 1\n[admin]\nlisten = "127.0.0.1:{free_port()}"\n[log]\nlevel = "warning"\n'
                f'[[ingress]]\nlisten = "127.0.0.1:{port}"\nupstream = "127.0.0.1:{upstream}"\n'
                f'[ingress.tls]\ncertificate = "{both}"\nca = "{authority.ca}"\nclient_auth = "required"\n'
                'allowed_names = ["localhost"]\n[ingress.upstream_tls]\n'
            )
            command = (sys.executable, "-m", "weir", "run", "--config", str(config))
            found.append(Way(f"weir, {loop}", port, stack.enter_context(running(*command, WEIR_EVENT_LOOP=loop))))
        if program := shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin"):
            port, config = free_port(), folder / "haproxy.cfg"
            config.write_text(
                "global\n  nbthread 1\n  ssl-default-bind-options ssl-min-ver TLSv1.3\n"
                "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n"
                f"listen relay\n  bind 127.0.0.1:{port} ssl crt {both} ca-file {authority.ca} verify required\n"
                f"  server broker 127.0.0.1:{upstream} ssl crt {both} ca-file {authority.ca} verify required"
                " verifyhost localhost sni str(localhost)\n"
            )
            found.append(Way("HAProxy", port, stack.enter_context(running(program, "-f", str(config)))))
        for way in found:
            wait_for(way.port)
        yield found, load_client_keys(files, checks_name=True).context


def measure_all(report: Report, rounds: int, seconds: float, *, fetch: bool) -> None:
    """Measure all ways in turn, print a table, and compare with HAProxy."""
    with ways() as (found, context):
        for number in range(rounds + 1):
            for way in found[:: 1 if number % 2 else -1]:
                measure(way, context, seconds, fetch=fetch)
            if number == 0:  # the first one only warms up
                for way in found:
                    way.rates.clear()
                    way.by_processor.clear()
        what = "1 MB replica fetches" if fetch else "1 MB answers"
        report.table(
            f"{what}, TLS on both ends, medians of {rounds} rounds of {seconds:g} s",
            {"way": 0, "MB/s": 0, "MB for each second of its processor": 0},
            [
                (way.name, statistics.median(way.rates), statistics.median(way.by_processor) if way.process else "")
                for way in found
            ],
        )
        haproxy = found[-1]
        if haproxy.name != "HAProxy":
            report.say("HAProxy is not installed: there is nothing to compare with.")
            return
        for way in found[1:-1]:
            ratio = statistics.median(way.by_processor) / statistics.median(haproxy.by_processor)
            report.bound(f"{what}: {way.name} beside HAProxy", ratio, least=LEAST_OF_HAPROXY)


def main() -> int:
    """Measure and print. Returns the exit status."""
    options = parser("bench.tls_hop", __doc__ or "")
    options.formatter_class = argparse.RawDescriptionHelpFormatter
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--seconds", type=float, default=2.0, help="of each round")
    chosen = options.parse_args()
    report = Report(chosen.json)
    for fetch in (False, True):
        measure_all(report, chosen.rounds, chosen.seconds, fetch=fetch)
    return report.status


if __name__ == "__main__":
    sys.exit(main())
