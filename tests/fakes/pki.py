# SPDX-License-Identifier: Apache-2.0
"""A certificate authority of a test: keys and certificates in files, made in milliseconds.

They have all that RFC 5280 asks for, so that they are taken strictly.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Issued:
    """A certificate with its key: PEM files of both, one with both in it, and a PKCS12 file."""

    certificate: str
    key: str
    together: str
    keystore: str
    password_file: str


class Authority:
    """Signs certificates, and puts them into files in `folder`; `ca` is its own certificate's file."""

    def __init__(self, folder: Path, name: str = "test-ca") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + 100 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(of_authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = str(folder / "ca.pem")
        Path(self.ca).write_bytes(self.certificate.public_bytes(Encoding.PEM))

    def issue(
        self, name: str, *, names: Sequence[str] | None = None, days: float = 30, password: str | None = None
    ) -> Issued:
        """Sign a certificate; `names` are its DNS names and addresses, `name` where none are given, () for none."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        general = [_general(one) for one in ([name] if names is None else names)]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 10 * DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(_usage(of_authority=False), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if general:
            builder = builder.add_extension(x509.SubjectAlternativeName(general), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        pem = certificate.public_bytes(Encoding.PEM)
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        store = serialize_key_and_certificates(name.encode(), key, certificate, [self.certificate], encryption)
        return Issued(
            self._write(f"{name}.pem", pem),
            self._write(f"{name}.key", key_pem),
            self._write(f"{name}-both.pem", key_pem + pem),
            self._write(f"{name}.p12", store),
            self._write(f"{name}.password", f"{password or ''}\n".encode()),
        )

    def revoke(self, *issued: Issued, days: float = 30) -> bytes:
        """Sign a list (CRL) of revoked certificates, in PEM form."""
        now = datetime.datetime.now(datetime.UTC)
        made = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        made = made.last_update(now - 10 * DAY).next_update(now + days * DAY)
        for one in issued:
            number = x509.load_pem_x509_certificate(Path(one.certificate).read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now - DAY)
            made = made.add_revoked_certificate(entry.build())
        return made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def _write(self, name: str, data: bytes) -> str:
        path = self.folder / name
        path.write_bytes(data)
        path.chmod(0o600)
        return str(path)


def _usage(*, of_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not of_authority,
        key_cert_sign=of_authority,
        crl_sign=of_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
