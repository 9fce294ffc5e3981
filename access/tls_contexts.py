# SPDX-License-Identifier: Apache-2.0
"""The one place where TLS contexts are made, so that certificates are judged alike on every Python.

A chain, its dates and its names are always verified. With `strict` certificates also have to have all that RFC 5280
asks for: so does Python's own default from 3.13 on, and Kafka's Java does not. As with both of these, an authority may
be trusted without the one that signed it. Where what is trusted has a list of revoked certificates (CRL), whoever shows
one is refused, and so is a certificate whose authority has no list there that is valid now.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from weir.access.client_properties import PropertiesError

_STRICT_ALONE: Final = frozenset({78, *range(80, 95)})
"""What OpenSSL refuses for VERIFY_X509_STRICT alone: X509_V_ERR_PATHLEN_INVALID_FOR_NON_CA to
X509_V_ERR_EC_KEY_EXPLICIT_PARAMS, and X509_V_ERR_SIGNATURE_ALGORITHM_INCONSISTENCY (x509_vfy.h)."""


_REVOKED: Final = 23  # X509_V_ERR_CERT_REVOKED
_NO_LIST: Final = {
    3: "ca has lists of revoked certificates (CRL), and none of the authority of this one: put it there",
    11: "the list of revoked certificates (CRL) in ca is not valid yet: look at this machine's clock",
    12: "the list of revoked certificates (CRL) in ca has expired: put the authority's new one there",
}
"""By OpenSSL's number: X509_V_ERR_UNABLE_TO_GET_CRL, _CRL_NOT_YET_VALID and _CRL_HAS_EXPIRED (x509_vfy.h)."""


def server_context(*, strict: bool = False) -> ssl.SSLContext:
    """Return what to accept connections with. It asks for no certificate, and trusts nobody yet."""
    return _judging(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), strict)


def client_context(*, strict: bool = False) -> ssl.SSLContext:
    """Return what to connect with. It verifies the other end's certificate and its name, and trusts nobody yet."""
    return _judging(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), strict)


def properties_context(options: Mapping[str, Any], *, strict: bool = False) -> ssl.SSLContext:
    """Return the context for options that `client_options` made; PropertiesError says which file cannot be used."""
    context = client_context(strict=strict)
    try:
        if "ssl_cafile" in options:
            trust(context, options["ssl_cafile"])
        else:
            context.load_default_certs()
    except (OSError, ValueError) as error:
        raise PropertiesError(
            "ssl.truststore.location", f"has no certificates in PEM form: {_reason(error)}"
        ) from error
    context.check_hostname = options.get("ssl_check_hostname", True)
    if "ssl_certfile" in options:
        # without a callback a locked key would be asked for on the terminal
        password = options.get("ssl_password", "")
        try:
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"), lambda: password)
        except (OSError, ValueError) as error:
            reason = f"has no certificate with its key in PEM form, or ssl.key.password is wrong: {_reason(error)}"
            raise PropertiesError("ssl.keystore.location", reason) from error
    return context


def trusted_files(path: str) -> tuple[str, ...]:
    """Return the file itself, or all files `*.crt` and `*.pem` of a folder: of an authority's old and new key, say."""
    folder = Path(path)
    if not folder.is_dir():
        return (path,)
    return tuple(sorted(str(file) for file in folder.iterdir() if file.suffix in (".crt", ".pem")))


def trust(context: ssl.SSLContext, path: str) -> None:
    """Trust the certificates of a file, or of a folder's `trusted_files`. OSError where there is none.

    Lists of revoked certificates among them are kept to. OpenSSL looks at none unless it is told to.
    """
    files = trusted_files(path)
    if not files:
        raise FileNotFoundError(errno.ENOENT, "the folder has no file *.crt or *.pem")
    for file in files:
        context.load_verify_locations(file)
    if context.cert_store_stats()["crl"]:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def refused_strictly(error: BaseException) -> bool:
    """Whether an error is that a certificate lacks what `strict` alone asks for."""
    return isinstance(error, ssl.SSLCertVerificationError) and getattr(error, "verify_code", None) in _STRICT_ALONE


def refused_as_revoked(error: ssl.SSLCertVerificationError) -> bool:
    """Whether a certificate is revoked, or no list there says that it is not."""
    return error.verify_code == _REVOKED or error.verify_code in _NO_LIST


def verification_words(error: ssl.SSLCertVerificationError) -> str:
    """Return what is wrong with a certificate; where `strict` or a list refuses it, how to go on."""
    if (no_list := _NO_LIST.get(getattr(error, "verify_code", 0))) is not None:
        return no_list
    words = getattr(error, "verify_message", None) or getattr(error, "reason", None) or error.strerror or str(error)
    words = words.lower().replace("_", " ").removesuffix(".")
    if not refused_strictly(error):
        return words
    return f"{words}, which [tls] strict = true asks for: issue it anew as docs/tls.md tells, or set strict = false"


def _judging(context: ssl.SSLContext, strict: bool) -> ssl.SSLContext:
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if strict:
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    else:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
