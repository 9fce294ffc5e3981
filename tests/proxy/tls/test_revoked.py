# SPDX-License-Identifier: Apache-2.0
"""Certificates that a list (CRL) in `ca` revokes, by whole handshakes of OpenSSL."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.pki import Authority, Issued
from tests.proxy.tls.test_keys import shake_hands
from weir.access.tls_contexts import properties_context, verification_words
from weir.proxy.tls.keys import KeyFiles, load_client_keys, load_server_keys
from weir.proxy.tls.live_keys import LiveKeys
from weir.proxy.tls.results import result_of

Judge = Callable[[Issued, str], None]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "keys")


def judge_client(shown: Issued, ca: str) -> None:
    """A server with `ca` accepts who shows a certificate."""
    server = load_server_keys(KeyFiles(certificate=shown.together, ca=ca), "required").context
    client = load_client_keys(KeyFiles(certificate=shown.together), checks_name=False).context
    client.verify_mode = ssl.CERT_NONE
    shake_hands(server, client)


def judge_server(shown: Issued, ca: str) -> None:
    """A client with `ca` connects to who shows a certificate."""
    client = load_client_keys(KeyFiles(ca=ca), checks_name=False).context
    shake_hands(load_server_keys(KeyFiles(certificate=shown.together), "none").context, client)


def judge_by_properties(shown: Issued, ca: str) -> None:
    """A client of Kafka's properties connects, as that of [cluster] does."""
    client = properties_context({"ssl_cafile": ca, "ssl_check_hostname": False})
    shake_hands(load_server_keys(KeyFiles(certificate=shown.together), "none").context, client)


def trusted_with(folder: Path, authority: Authority, *lists: bytes) -> str:
    """A file with the authority's certificate, and the lists behind it."""
    path = folder / "trusted.pem"
    path.write_bytes(Path(authority.ca).read_bytes() + b"".join(lists))
    return str(path)


def refusal(judge: Judge, shown: Issued, ca: str) -> ssl.SSLCertVerificationError:
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        judge(shown, ca)
    assert result_of(caught.value) == "revoked"
    return caught.value


@pytest.mark.parametrize("judge", [judge_client, judge_server, judge_by_properties])
def test_revoked_certificate_is_refused_at_both_ends_and_others_are_taken(
    authority: Authority, tmp_path: Path, judge: Judge
) -> None:
    revoked, good = authority.issue("revoked.test"), authority.issue("good.test")
    judge(revoked, authority.ca)  # without a list nobody is
    ca = trusted_with(tmp_path, authority, authority.revoke(revoked))
    judge(good, ca)
    assert verification_words(refusal(judge, revoked, ca)) == "certificate revoked"


@pytest.mark.parametrize(("days", "words"), [(-1, "has expired"), (None, "none of the authority of this one")])
def test_list_that_has_expired_or_is_anothers_takes_nobody_and_says_why(
    authority: Authority, tmp_path: Path, days: float | None, words: str
) -> None:
    signer = authority if days is not None else Authority(tmp_path / "other", "other-ca")
    ca = trusted_with(tmp_path, authority, signer.revoke(days=30 if days is None else days))
    assert words in verification_words(refusal(judge_client, authority.issue("good.test"), ca))


def test_list_that_is_renewed_is_read_again(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue("broker-1.test")
    files = KeyFiles(ca=trusted_with(tmp_path, authority, authority.revoke()))
    live = LiveKeys("tls", files, partial(load_client_keys, files, checks_name=False))
    server = load_server_keys(KeyFiles(certificate=issued.together), "none").context
    shake_hands(server, live.keys.context)
    trusted_with(tmp_path, authority, authority.revoke(issued))
    assert live.reload()
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, live.keys.context)


def test_list_in_a_folder_beside_its_authority_is_kept_to(authority: Authority) -> None:
    revoked = authority.issue("revoked.test")
    folder = authority.folder / "trusted"
    folder.mkdir()
    (folder / "ca.crt").write_bytes(Path(authority.ca).read_bytes())
    (folder / "revoked.pem").write_bytes(authority.revoke(revoked))
    refusal(judge_client, revoked, str(folder))
