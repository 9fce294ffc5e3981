# SPDX-License-Identifier: Apache-2.0
"""Which files of a configuration every user of the machine may read or change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.pki import Authority
from weir.proxy.config.keys import RouteKeys
from weir.proxy.config.load import parse_config
from weir.proxy.open_files import open_files


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    authority = Authority(tmp_path)
    issued = authority.issue("broker-1", password="secret")  # noqa: S106
    found = {"ca": authority.ca, "certificate": issued.certificate, "key": issued.key}
    found |= {"password_file": issued.password_file, "together": issued.together}
    found |= {name: str(tmp_path / name) for name in ("token", "properties")}
    paths = {name: Path(path) for name, path in found.items()}
    paths["token"].write_text("0123456789abcdef")
    paths["properties"].write_text("security.protocol=PLAINTEXT")
    for path in paths.values():
        path.chmod(0o600)
    return paths


def told(files: dict[str, Path], *, together: bool = False) -> list[tuple[str, str]]:
    key = f'certificate = "{files["together" if together else "certificate"]}"\n'
    key += "" if together else f'key = "{files["key"]}"\n'
    config = parse_config(
        f"""
        broker_id = 1
        [admin]
        write_token_file = "{files["token"]}"
        [cluster]
        bootstrap_servers = "b:9092"
        properties = "{files["properties"]}"
        [[ingress]]
        listen = "127.0.0.1:0"
        upstream = "127.0.0.1:1"
        [ingress.tls]
        {key}
        password_file = "{files["password_file"]}"
        ca = "{files["ca"]}"
        """
    )
    return list(open_files(config, RouteKeys(config).all_keys))


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("key", "ingress[0].tls"),
        ("password_file", "ingress[0].tls"),
        ("token", "admin.write_token_file"),
        ("properties", "cluster.properties"),
    ],
)
@pytest.mark.parametrize(("mode", "may"), [(0o604, "read"), (0o602, "change"), (0o666, "read and change")])
def test_secret_that_every_user_may_read_or_change_is_told(
    files: dict[str, Path], name: str, setting: str, mode: int, may: str
) -> None:
    assert told(files) == []
    files[name].chmod(mode)
    path = files[name]
    assert told(files) == [(setting, f"every user of this machine may {may} {path}: chmod o-rw {path}")]


@pytest.mark.parametrize("name", ["ca", "certificate"])
def test_certificate_may_be_read_by_every_user_and_changed_by_none(files: dict[str, Path], name: str) -> None:
    files[name].chmod(0o644)
    assert told(files) == []
    files[name].chmod(0o646)
    assert [f"may change {files[name]}:" in sentence for _, sentence in told(files)] == [True]


def test_certificate_with_its_key_in_the_same_file_is_a_secret(files: dict[str, Path]) -> None:
    files["together"].chmod(0o644)
    assert [f"may read {files['together']}:" in sentence for _, sentence in told(files, together=True)] == [True]
