# SPDX-License-Identifier: Apache-2.0
"""Loads keys and certificates from files, into what Python's TLS takes, and compares the names in certificates.

PEM files are read as they are. A PKCS12 file, such as `keytool` makes, is read by `cryptography`. It is imported only
where TLS is configured, as it takes some 10 MB.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from weir.access.client_properties import PropertiesError, parse_properties
from weir.access.tls_contexts import client_context, server_context, trust, trusted_files

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

LeastVersion = Literal["1.2", "1.3"]
ClientAuth = Literal["none", "requested", "required"]

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_JAVA_STORES: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")  # the first bytes of JKS and JCEKS files
_REVOCATION_LIST: Final = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)
_PASSWORD_PROPERTIES: Final = ("ssl.keystore.password", "ssl.key.password")


class KeysError(Exception):
    """A file with keys or certificates cannot be used. `field` is the setting that names it; no secret is shown."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field} {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFiles:
    """Where one end's key and certificates are, each a path or None.

    The key is in `key`, in `certificate` beside the certificate, or in `keystore` (PKCS12) together with it.
    `password_file` has the password of the key or of the keystore. `ca` has the certificates that are trusted, or is
    a folder of such files. `strict` says how the other end's certificate is judged.
    """

    certificate: str | None = None
    key: str | None = None
    keystore: str | None = None
    password_file: str | None = None
    ca: str | None = None
    least_version: LeastVersion = "1.3"
    strict: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """All files, in a fixed order."""
        trusted = () if self.ca is None else trusted_files(self.ca)
        named = (self.certificate, self.key, self.keystore, self.password_file, *trusted)
        return tuple(path for path in named if path is not None)

    @property
    def public_paths(self) -> tuple[str, ...]:
        """Those that hold no secret: a certificate's file does where it has the key, too."""
        trusted = () if self.ca is None else trusted_files(self.ca)
        return trusted if self.certificate is None or self.key is None else (self.certificate, *trusted)

    @property
    def has_certificate(self) -> bool:
        """Whether this end can say who it is."""
        return self.certificate is not None or self.keystore is not None


@dataclass(frozen=True, slots=True)
class Keys:
    """What was loaded. `expires_at` is that of this end's own certificate, in seconds since 1970.

    `names` are the DNS names in the certificate, as it lists them. `list_expires_at` is when the first of the lists of
    revoked certificates in `ca` expires; None: there is none.
    """

    context: ssl.SSLContext
    expires_at: float | None = None
    names: tuple[str, ...] = ()
    list_expires_at: float | None = None


def load_server_keys(files: KeyFiles, client_auth: ClientAuth) -> Keys:
    """Load the keys of an end that accepts connections. KeysError says which file cannot be used. It blocks."""
    context = server_context(strict=files.strict)
    context.num_tickets = 0  # no session outlives the certificates that it was begun with
    context.verify_mode = _CLIENT_AUTH[client_auth]
    return _loaded(context, files)


def load_client_keys(files: KeyFiles, *, checks_name: bool) -> Keys:
    """Load the keys of an end that connects; it may have no certificate. It blocks.

    With `checks_name` the other end's certificate has to have the name that is connected to.
    KeysError says which file cannot be used.
    """
    context = client_context(strict=files.strict)
    context.check_hostname = checks_name
    return _loaded(context, files)


def _loaded(context: ssl.SSLContext, files: KeyFiles) -> Keys:
    context.minimum_version = _VERSIONS[files.least_version]
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    list_expires_at = None if files.ca is None else _trust(context, files.ca)
    if not files.has_certificate:
        return Keys(context, list_expires_at=list_expires_at)
    password = _password(files.password_file)
    if files.keystore is not None:
        chain = _load_keystore(context, files.keystore, password)
    else:
        chain = _load_pem(context, files, password)
    own = chain[0]
    return Keys(context, own.not_valid_after_utc.timestamp(), _dns_names(own), list_expires_at)


def _trust(context: ssl.SSLContext, path: str) -> float | None:
    """Trust what `ca` has, and return when the first of its lists of revoked certificates expires."""
    texts = [_read("ca", file) for file in trusted_files(path)]
    if any(text.startswith(_JAVA_STORES) for text in texts):
        raise KeysError("ca", f"{_is_java(path)}: keytool -exportcert -rfc -alias ALIAS -keystore {path} -file ca.pem")
    try:
        trust(context, path)
    except (OSError, ValueError) as error:
        raise KeysError("ca", f"{path} has no certificates in PEM form: {_words(error)}") from None
    return min((at for text in texts for at in _list_expiries(text)), default=None)


def _list_expiries(text: bytes) -> Iterable[float]:
    lists = _REVOCATION_LIST.findall(text)
    if lists:
        from cryptography.x509 import load_pem_x509_crl

        for pem in lists:
            if (at := load_pem_x509_crl(pem).next_update_utc) is not None:
                yield at.timestamp()


def _load_pem(context: ssl.SSLContext, files: KeyFiles, password: bytes | None) -> Sequence[Certificate]:
    from cryptography.x509 import load_pem_x509_certificates

    path = files.certificate or ""
    text = _read("certificate", path)
    if text.startswith(_JAVA_STORES):
        raise KeysError("certificate", f"{_is_java(path)}: {_import_line(path)}, and name the new file as keystore")
    if files.key is not None:
        _read("key", files.key)
    try:
        chain = load_pem_x509_certificates(text)
    except ValueError:
        raise KeysError("certificate", f"{path} has no certificate in PEM form") from None
    field = "certificate" if files.key is None else "key"
    try:
        # without a password given here, that of a locked key would be asked for on the terminal
        context.load_cert_chain(path, files.key, password or b"")
    except (OSError, ValueError) as error:
        reason = "has no key in PEM form that fits the certificate, or its password is wrong"
        raise KeysError(field, f"{files.key or path} {reason}: {_words(error)}") from None
    return chain


def _load_keystore(context: ssl.SSLContext, path: str, password: bytes | None) -> Sequence[Certificate]:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_key_and_certificates

    data = _read("keystore", path)
    if data.startswith(_JAVA_STORES):
        raise KeysError("keystore", f"{_is_java(path)}: {_import_line(path)}")
    try:
        key, own, others = load_key_and_certificates(data, password)
    except ValueError:
        raise KeysError("keystore", f"{path} is no PKCS12 file, or its password is wrong") from None
    if key is None or own is None:
        raise KeysError("keystore", f"{path} has no key with its certificate")
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = [own, *others]
    pem += b"".join(certificate.public_bytes(Encoding.PEM) for certificate in chain)
    # Python takes keys from files only. This one is in memory, and nobody else can open it.
    descriptor = os.memfd_create("keys", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except (OSError, ValueError) as error:
        raise KeysError("keystore", f"{path} has a key that cannot be used: {_words(error)}") from None
    finally:
        os.close(descriptor)
    return chain


def _password(path: str | None) -> bytes | None:
    """Read a password: the file's first line, or what Kafka's property for it says in a properties file."""
    if path is None:
        return None
    try:
        text = _read("password_file", path).decode()
    except UnicodeDecodeError:
        raise KeysError("password_file", f"{path} is no text in UTF-8") from None
    try:
        properties = parse_properties(text)
    except PropertiesError:
        properties = {}  # a password, with a sign that Java would take for an escape
    for name in _PASSWORD_PROPERTIES:
        if name in properties:
            return properties[name].encode()
    return text.partition("\n")[0].rstrip("\r").encode()


def _read(field: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise KeysError(field, f"{path} cannot be read: {error.strerror or error}") from None


def _dns_names(certificate: Certificate) -> tuple[str, ...]:
    from cryptography.x509 import DNSName, ExtensionNotFound, SubjectAlternativeName

    try:
        names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except (ExtensionNotFound, ValueError):
        return ()
    return tuple(names.get_values_for_type(DNSName))


def _is_java(path: str) -> str:
    return f"{path} is a Java keystore (JKS), which Java alone can read; convert it"


def _import_line(path: str) -> str:
    target = str(Path(path).with_suffix(".p12"))
    return f"keytool -importkeystore -srckeystore {path} -destkeystore {target} -deststoretype PKCS12"


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error)


def names_in(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the DNS names and addresses of a certificate, as `SSLSocket.getpeercert` has it.

    Its common name counts only where it has no subjectAltName of any kind (RFC 6125, section 6.4.4).
    """
    if not certificate:
        return ()
    if alternative := certificate.get("subjectAltName"):
        return tuple(value for kind, value in alternative if kind in ("DNS", "IP Address"))
    return tuple(value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName")


def fits(certificate: Mapping[str, Any] | None, allowed: Iterable[str]) -> bool:
    """Return whether one of a certificate's names is allowed.

    `allowed` has names and patterns. A name with `*` in the certificate itself is compared as a text: nobody can be let
    in by a pattern of their own.
    """
    names = names_in(certificate)
    return any(pattern == "*" or name_fits(name, pattern) for pattern in allowed for name in names)


def name_fits(name: str, pattern: str) -> bool:
    """Return whether a name is what a pattern says. `*` stands for a part of one label: no dot is in it.

    Addresses are compared as addresses, and whole.
    """
    with suppress(ValueError):
        address = ip_address(name.strip())  # OpenSSL ends some with a line end
        with suppress(ValueError):
            return address == ip_address(pattern)
        return False
    labels, patterns = name.casefold().split("."), pattern.casefold().split(".")
    return len(labels) == len(patterns) and all(map(fnmatchcase, labels, patterns))
