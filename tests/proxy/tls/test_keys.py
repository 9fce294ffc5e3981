# SPDX-License-Identifier: Apache-2.0
"""Files with keys: which can be used, which sentence the others get, and what happens when they change."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.pki import DAY, Authority, Issued
from tests.fakes.relaying import logged
from weir.proxy.tls.keys import KeyFiles, KeysError, fits, load_client_keys, load_server_keys, name_fits, names_in
from weir.proxy.tls.live_keys import KeyWatch, LiveKeys
from weir.proxy.tls.results import TlsStats

SECRET = "pass word=#1"  # noqa: S105


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "keys")


def refusal(files: KeyFiles) -> KeysError:
    with pytest.raises(KeysError) as caught:
        load_server_keys(files, "required")
    assert SECRET not in str(caught.value)
    return caught.value


def broken(issued: Issued) -> None:
    """Leave its file half written."""
    Path(issued.together).write_text("half a fi")


@pytest.mark.parametrize("password", [None, SECRET])
@pytest.mark.parametrize("kind", ["certificate and key", "both in one file", "keystore"])
def test_pem_and_pkcs12_are_loaded_locked_or_not(authority: Authority, kind: str, password: str | None) -> None:
    issued = authority.issue("broker-1.test", days=30, password=password)
    password_file = issued.password_file if password is not None else None
    files = {
        "certificate and key": KeyFiles(certificate=issued.certificate, key=issued.key, password_file=password_file),
        "both in one file": KeyFiles(certificate=issued.together, password_file=password_file),
        "keystore": KeyFiles(keystore=issued.keystore, password_file=password_file),
    }[kind]
    keys = load_server_keys(files, "none")
    assert keys.names == ("broker-1.test",)
    assert keys.expires_at is not None
    assert keys.context.minimum_version is ssl.TLSVersion.TLSv1_3


def test_password_may_stand_in_a_properties_file_of_kafka(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue("broker-1.test", password=SECRET)
    properties = tmp_path / "server.properties"
    properties.write_text(f"broker.id=1\nssl.keystore.password={SECRET}\n")
    load_server_keys(KeyFiles(keystore=issued.keystore, password_file=str(properties)), "none")


def test_password_may_be_no_property_that_java_would_read(authority: Authority, tmp_path: Path) -> None:
    unreadable = r"a\usb"
    issued = authority.issue("broker-1.test", password=unreadable)
    password = tmp_path / "password"
    password.write_text(f"{unreadable}\n")
    load_server_keys(KeyFiles(keystore=issued.keystore, password_file=str(password)), "none")


def test_locked_key_without_password_is_refused_unasked(authority: Authority) -> None:
    """Nobody is asked for a password."""
    issued = authority.issue("broker-1.test", password=SECRET)
    assert refusal(KeyFiles(certificate=issued.certificate, key=issued.key)).field == "key"
    assert refusal(KeyFiles(keystore=issued.keystore)).reason.endswith("no PKCS12 file, or its password is wrong")


def test_key_of_another_certificate_is_refused(authority: Authority) -> None:
    one, other = authority.issue("one.test"), authority.issue("other.test")
    error = refusal(KeyFiles(certificate=one.certificate, key=other.key))
    assert error.field == "key" and "key values mismatch" in error.reason


@pytest.mark.parametrize("field", ["certificate", "keystore", "ca"])
def test_java_keystore_is_refused_with_a_line_that_converts_it(
    authority: Authority, tmp_path: Path, field: str
) -> None:
    store = tmp_path / "broker.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed" + bytes(100))
    files = KeyFiles(ca=str(store)) if field == "ca" else KeyFiles(**{field: str(store)})  # type: ignore[arg-type]
    error = refusal(files)
    assert error.field == field
    assert ("keytool -exportcert" if field == "ca" else "keytool -importkeystore") in error.reason
    assert str(store) in error.reason


@pytest.mark.long
@pytest.mark.skipif(shutil.which("keytool") is None, reason="no keytool here: install Java")
def test_line_that_converts_a_java_keystore_makes_a_usable_file(tmp_path: Path) -> None:
    store, password = tmp_path / "broker.jks", tmp_path / "server.properties"
    password.write_text("ssl.keystore.password=changeit\n")
    key = "-alias broker -keyalg EC -dname CN=broker-1 -ext SAN=dns:broker-1.test -keypass changeit"
    keytool(f"keytool -genkeypair {key} -storetype JKS -keystore {store} -storepass changeit")
    line = refusal(KeyFiles(keystore=str(store))).reason.partition("convert it: ")[2]
    keytool(f"{line} -srcstorepass changeit -deststorepass changeit")
    keys = load_server_keys(KeyFiles(keystore=str(tmp_path / "broker.p12"), password_file=str(password)), "none")
    assert keys.names == ("broker-1.test",)


def keytool(line: str) -> None:
    subprocess.run(line.split(), check=True, capture_output=True, timeout=60)


def test_files_that_are_missing_or_empty_are_named(authority: Authority, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    assert (
        refusal(KeyFiles(certificate="/no/such.pem")).reason == "/no/such.pem cannot be read: No such file or directory"
    )
    assert refusal(KeyFiles(certificate=str(empty))).reason == f"{empty} has no certificate in PEM form"
    assert refusal(KeyFiles(ca=str(empty))).reason.startswith(f"{empty} has no certificates in PEM form")


async def test_changed_files_are_in_use_and_broken_ones_are_not(authority: Authority) -> None:
    issued = authority.issue("broker-1.test", days=30)
    files = KeyFiles(certificate=issued.together, ca=authority.ca)
    live = LiveKeys("ingress[0].tls", files, partial(load_server_keys, files, "required"))
    stats = TlsStats()
    with logged() as (log, lines):
        told: list[float | None] = []
        watch = KeyWatch(
            *([live], stats, log, lambda: told.append(live.keys.expires_at)),
            now=lambda: (live.keys.expires_at or 0) - 60,
        )
        first = live.keys
        await watch.check()
        assert live.keys is first
        broken(issued)
        await watch.check()
        assert live.keys is first and stats.reloads == {"refused": 1}
        assert lines.of("tls_keys_refused")[0]["effect"] == "the old keys stay in use"
        authority.issue("broker-1.test", days=60)
        await watch.check()
        await watch.check()
        assert stats.reloads == {"refused": 1, "ok": 1}
        assert told == [live.keys.expires_at]
        assert (live.keys.expires_at or 0) - (first.expires_at or 0) > 29 * DAY.total_seconds()
        assert watch.seconds_left() == {"ingress[0].tls": 60}


def test_a_folder_trusts_an_authoritys_old_and_its_new_key(authority: Authority, tmp_path: Path) -> None:
    """While an operator replaces it, brokers have certificates of both."""
    new, folder = Authority(tmp_path / "new", "new-ca"), tmp_path / "ca"
    folder.mkdir()
    for number, each in enumerate((authority, new)):
        shutil.copy(each.ca, folder / f"ca-{number}.crt")
    server = load_server_keys(KeyFiles(certificate=new.issue("leader.test").together, ca=str(folder)), "required")
    for each in (authority, new):
        files = KeyFiles(certificate=each.issue("follower.test").together, ca=str(folder))
        shake_hands(server.context, load_client_keys(files, checks_name=False).context)
    stranger = Authority(tmp_path / "other", "other-ca").issue("follower.test")
    files = KeyFiles(certificate=stranger.together, ca=str(folder))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server.context, load_client_keys(files, checks_name=False).context)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """A whole handshake, in memory. Raises ssl.SSLError where one end refuses it."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    for _ in range(3):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()


async def test_link_that_leads_to_new_files_counts_as_a_change(authority: Authority, tmp_path: Path) -> None:
    """As Kubernetes renews a Secret."""
    link = tmp_path / "current.pem"
    link.symlink_to(authority.issue("old.test").together)
    files = KeyFiles(certificate=str(link))
    live = LiveKeys("tls", files, partial(load_client_keys, files, checks_name=True))
    other = tmp_path / "new"
    other.symlink_to(authority.issue("new.test").together)
    os.replace(other, link)
    assert live.reload()
    assert live.keys.names == ("new.test",)


def test_names_are_compared_whole_and_without_case() -> None:
    certificate = {
        "subject": ((("commonName", "kafka"),),),
        "subjectAltName": (("DNS", "Broker-1.kafka.test"), ("IP Address", "10.0.0.1"), ("email", "a@b.test")),
    }
    assert names_in(certificate) == ("Broker-1.kafka.test", "10.0.0.1")
    assert fits(certificate, ("broker-*.kafka.test",))
    assert fits(certificate, ("10.0.0.1",))
    assert not fits(certificate, ("kafka", "broker-1", "kafka.test", "b.test", "broker-1.kafka.test.evil"))
    assert not fits({"subjectAltName": (("DNS", "*"),)}, ("broker-1",))
    assert not fits(None, ("*",))


def test_common_name_counts_only_without_any_other_name() -> None:
    common = ((("commonName", "broker-1.kafka.test"),),)
    allowed = ("broker-*.kafka.test",)
    assert fits({"subject": common}, allowed)
    for kind in ("DNS", "IP Address", "email", "URI"):
        assert not fits({"subject": common, "subjectAltName": ((kind, "10.0.0.1"),)}, allowed)


@pytest.mark.parametrize(
    ("name", "pattern", "is_fit"),
    [
        ("broker-7.kafka.internal", "broker-*.kafka.internal", True),
        ("broker-x.evil.kafka.internal", "broker-*.kafka.internal", False),
        ("broker-7.kafka.internal", "*.kafka.internal", True),
        ("kafka.internal", "*.kafka.internal", False),
        ("a.b.kafka.internal", "*.kafka.internal", False),
        ("broker-7", "broker-*", True),
        ("broker-7.evil.test", "broker-*", False),
        ("10.0.0.1", "10.0.0.*", False),
        ("0:0:0:0:0:0:0:1\n", "::1", True),
    ],
)
def test_star_in_a_pattern_stays_within_one_label(name: str, pattern: str, *, is_fit: bool) -> None:
    assert name_fits(name, pattern) is is_fit
    assert fits({"subject": ((("commonName", name),),)}, ("*",))  # alone it is: all that the ca has signed
