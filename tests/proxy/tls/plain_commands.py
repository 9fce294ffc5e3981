# SPDX-License-Identifier: Apache-2.0
"""Certificates made by the very commands that operators use: those of Kafka's documentation, and keytool's alone."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

HOST = "localhost"
_PASSWORD = "changeit"  # noqa: S105 - of files that a test makes and throws away

_AUTHORITY_CNF = """
[ ca ]
default_ca = CA_default
[ CA_default ]
base_dir = .
certificate = $base_dir/cacert.pem
private_key = $base_dir/cakey.pem
new_certs_dir = $base_dir
database = $base_dir/index.txt
serial = $base_dir/serial.txt
default_days = 1000
default_md = sha256
email_in_dn = no
unique_subject = no
copy_extensions = copy
[ req ]
prompt = no
distinguished_name = ca_distinguished_name
x509_extensions = ca_extensions
[ ca_distinguished_name ]
commonName = kafka-ca
[ ca_extensions ]
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always, issuer
basicConstraints = critical, CA:true
keyUsage = keyCertSign, cRLSign
[ signing_policy ]
commonName = supplied
[ signing_req ]
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid,issuer
basicConstraints = CA:FALSE
keyUsage = digitalSignature, keyEncipherment
"""
"""As section "SSL" of Kafka's documentation of security has it, with an authority named without questions."""


@dataclass(frozen=True)
class Made:
    """PEM files: of the authority, and of a broker's key with its certificate."""

    ca: str
    together: str


class PlainCommands:
    """Runs the commands in a folder; each way is made when it is first asked for, and takes a second or two."""

    def __init__(self, folder: Path) -> None:
        for tool in ("openssl", "keytool"):
            if shutil.which(tool) is None:
                pytest.skip(f"{tool} is not installed")
        self._folder = folder

    @cached_property
    def kafkas_short(self) -> Made:
        """An authority by `openssl req -x509`, and a request of keytool's signed by `openssl x509 -req`."""
        self._run("openssl req -new -x509 -newkey rsa:2048 -nodes -keyout ca-key -out ca-cert -days 365 -subj /CN=ca")
        self._run(
            f"openssl x509 -req -CA ca-cert -CAkey ca-key -in {self._request} -out signed -days 365 -CAcreateserial"
        )
        return self.made("short", "ca-cert", "signed")

    @cached_property
    def kafkas_long(self) -> Made:
        """An authority with a file of its own, openssl-ca.cnf, that signs by `openssl ca`."""
        (self._folder / "openssl-ca.cnf").write_text(_AUTHORITY_CNF)
        (self._folder / "index.txt").touch()
        (self._folder / "serial.txt").write_text("01\n")
        self._run("openssl req -x509 -config openssl-ca.cnf -newkey rsa:2048 -nodes -out cacert.pem -keyout cakey.pem")
        self._run(
            "openssl ca -batch -notext -config openssl-ca.cnf -policy signing_policy -extensions signing_req"
            f" -out signed.pem -infiles {self._request}"
        )
        return self.made("long", "cacert.pem", "signed.pem")

    @cached_property
    def keytool_alone(self) -> Made:
        """An authority in a keystore, that signs by `keytool -gencert`."""
        store = f"-storetype PKCS12 -storepass {_PASSWORD}"
        self._run(f"keytool -genkeypair -keystore ca.p12 -alias ca -keyalg RSA -dname CN=ca -ext bc:c {store}")
        self._run(f"keytool -exportcert -rfc -keystore ca.p12 -alias ca -file kca.pem {store}")
        self._run(f"keytool -gencert -rfc -keystore ca.p12 -alias ca -infile {self._request} -outfile ksigned {store}")
        return self.made("keytool", "kca.pem", "ksigned")

    @cached_property
    def _request(self) -> str:
        store = f"-keystore server.p12 -alias {HOST} -storetype PKCS12 -storepass {_PASSWORD}"
        names = f"-dname CN={HOST} -ext SAN=DNS:{HOST}"
        self._run(f"keytool -genkey {store} -validity 365 -keyalg RSA {names}")
        self._run(f"keytool -certreq {store} -file cert-file")
        self._run(f"openssl pkcs12 -in server.p12 -passin pass:{_PASSWORD} -nodes -nocerts -out server.key")
        return "cert-file"

    def made(self, name: str, ca: str, certificate: str) -> Made:
        """Return what a way made: an authority, and a certificate for the broker's key."""
        together = self._folder / f"{name}-both.pem"
        together.write_text((self._folder / certificate).read_text() + (self._folder / "server.key").read_text())
        return Made(str(self._folder / ca), str(together))

    def shell(self, line: str) -> None:
        """Run a line of a shell in the folder."""
        subprocess.run(["/bin/sh", "-ec", line], cwd=self._folder, check=True, capture_output=True, timeout=60)

    def _run(self, command: str) -> None:
        subprocess.run(command.split(), cwd=self._folder, check=True, capture_output=True, timeout=60)


WAYS: dict[str, Callable[[PlainCommands], Made]] = {
    "Kafka's short way": lambda commands: commands.kafkas_short,
    "Kafka's long way": lambda commands: commands.kafkas_long,
    "keytool alone": lambda commands: commands.keytool_alone,
}
REFUSED_STRICTLY = {
    "Kafka's short way": "CA cert does not include key usage extension",
    "Kafka's long way": None,
    "keytool alone": "CA cert does not include key usage extension",
}
"""What OpenSSL says of each with VERIFY_X509_STRICT; Java takes all three."""
