# SPDX-License-Identifier: Apache-2.0
"""Secrets stay where they are: in no log at any level, no answer, no sentence about a mistake, no list of processes."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.pki import Authority
from tests.proxy.test_server import Process, start

pytestmark = pytest.mark.long

READ, WRITE = "planted-read-token-1", "planted-write-token-2"
SASL, PASSPHRASE, GUESS = "planted-sasl-password-3", "planted-passphrase-4", "planted-wrong-token-5"
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
PLANTED = "planted-"


@dataclass(frozen=True)
class Planted:
    """A configuration with every kind of secret."""

    config: Path
    properties: Path
    token: Path
    password: Path
    key: Path

    def text(self) -> str:
        return self.config.read_text()


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    issued = Authority(tmp_path / "keys").issue("localhost", password=PASSPHRASE)
    for name, secret in (("read", READ), ("write", WRITE)):
        (tmp_path / name).write_text(secret + "\n")
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={JAAS} username="weir" password="{SASL}";\n'
    )
    with socket.create_server(("127.0.0.1", 0)) as found:
        nobody = found.getsockname()[1]
    config = tmp_path / "weir.toml"
    config.write_text(f"""
        broker_id = 1
        [[ingress]]
        listen = "127.0.0.1:0"
        upstream = "127.0.0.1:{nobody}"
        tls = {{ certificate = "{issued.certificate}", key = "{issued.key}", password_file = "{issued.password_file}" }}
        [admin]
        listen = "127.0.0.1:0"
        read_token_file = "{tmp_path / "read"}"
        write_token_file = "{tmp_path / "write"}"
        fleet = ["127.0.0.1:{nobody}"]
        [cluster]
        bootstrap_servers = "127.0.0.1:{nobody}"
        properties = "{properties}"
        poll_seconds = 0.1
        [log]
        level = "debug"
    """)
    return Planted(config, properties, tmp_path / "read", Path(issued.password_file), Path(issued.key))


@pytest.fixture
def run() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.kill()


def asked(port: int, method: str, path: str, token: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request(method, path, body="{}", headers=headers)
    response = connection.getresponse()
    told = f"{response.status} {response.headers} {response.read().decode()}"
    connection.close()
    return told


def test_sidecar_tells_no_secret_in_log_answers_or_processes(run: list[Process], planted: Planted) -> None:
    process = start(run, planted.config, planted.text())
    port = process.admin_port()
    pages = ("/", "/metrics", "/v1/status", "/v1/throttle", "/v1/limits", "/v1/history", "/v1/fleet", "/readyz", "/no")
    told = [asked(port, "GET", page, token) for page in pages for token in (READ, WRITE, GUESS)]
    told += [asked(port, "PATCH", "/v1/throttle", token) for token in (READ, WRITE, GUESS)]
    assert any(one.startswith("200") for one in told) and any(one.startswith("401") for one in told)
    proc = Path(f"/proc/{process.child.pid}")
    told += [(proc / name).read_text(errors="replace") for name in ("cmdline", "environ")]
    planted.password.write_text("planted-other-passphrase\n")
    process.child.send_signal(signal.SIGHUP)
    process.until("event=config_refused")
    process.end(signal.SIGTERM)
    process.until("event=stopped")
    told += process.lines
    assert any("event=throttle_changed" in one for one in told)
    assert not [one for one in told if PLANTED in one]


@pytest.mark.parametrize("mistake", ["none", "jaas", "protocol", "token", "passphrase", "key"])
def test_check_tells_no_secret_whatever_is_wrong(planted: Planted, mistake: str) -> None:
    broken: dict[str, tuple[Path, str]] = {
        "jaas": (planted.properties, f'sasl.jaas.config={JAAS} username="weir" password="{SASL}'),
        "protocol": (planted.properties, f"security.protocol={JAAS}\nsasl.jaas.config=password={SASL}"),
        "token": (planted.token, "planted-\x01bad"),
        "passphrase": (planted.password, "planted-other-passphrase"),
        "key": (planted.key, "planted-no-key"),
    }
    if mistake in broken:
        path, text = broken[mistake]
        path.write_text(text)
    for words in ([], ["--json"]):
        command = [sys.executable, "-m", "weir", "check", "--config", str(planted.config), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        assert PLANTED not in done.stdout + done.stderr
        assert done.returncode in (0, 2)
        assert done.returncode == 0 or mistake != "none"
        assert "Traceback" not in done.stderr
