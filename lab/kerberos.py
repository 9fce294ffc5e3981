# SPDX-License-Identifier: Apache-2.0
"""A Kerberos realm of a lab, with MIT's key distribution centre on loopback (Debian's package krb5-kdc)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from typing import Final

from weir.lab.errors import LabError
from weir.lab.network import LOOPBACK
from weir.lab.processes import Process, Supervisor

REALM: Final = "WEIR.LAB"

_PATH: Final = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_PROGRAMS: Final = ("krb5kdc", "kdb5_util", "kadmin.local")
_START_SECONDS: Final = 30
_ISSUED: Final = re.compile(rf"TGS_REQ .* ISSUE: .* (\S+)@{REALM} for (\S+)@{REALM}$", re.MULTILINE)


def missing() -> str | None:
    """Return what a realm needs and this machine has not; None where nothing is missing."""
    absent = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    return f"no {', '.join(absent)} here: install krb5-kdc and krb5-admin-server" if absent else None


class Realm:
    """A realm whose files are in a folder of `supervisor`'s lab; `start` makes principals, and runs the centre."""

    def __init__(self, supervisor: Supervisor, port: int) -> None:
        self._supervisor = supervisor
        self._port = port
        self.folder = supervisor.folder / "kerberos"
        self.keytab = self.folder / "keytab"
        """The keys of all principals."""
        self.config = self.folder / "krb5.conf"
        self._log = supervisor.log("kdc")

    def start(self, principals: Iterable[str]) -> None:
        """Make the realm with these principals, and wait until tickets can be had. Raises LabError."""
        if (reason := missing()) is not None:
            raise LabError(f"A Kerberos realm cannot be made: {reason}.")
        self.folder.mkdir()
        address = f"{LOOPBACK}:{self._port}"
        self.config.write_text(
            f"[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\ndns_lookup_realm = false\n"
            f"dns_canonicalize_hostname = false\nrdns = false\nudp_preference_limit = 1\n"
            f"[realms]\n{REALM} = {{\n kdc = {address}\n}}\n[logging]\nkdc = STDERR\n"
        )
        (self.folder / "kdc.conf").write_text(
            f"[realms]\n{REALM} = {{\n kdc_listen = {address}\n kdc_tcp_listen = {address}\n"
            f" database_name = {self.folder}/principal\n key_stash_file = {self.folder}/stash\n"
            " supported_enctypes = aes256-cts-hmac-sha1-96:normal\n}\n"
        )
        self._run(["kdb5_util", "create", "-s", "-r", REALM, "-P", "of-this-realm-alone"])
        lines = (f"addprinc -randkey {name}\nktadd -k {self.keytab} {name}\n" for name in principals)
        self._run(["kadmin.local", "-r", REALM], "".join(lines))
        centre = Process(
            self._supervisor,
            "the key distribution centre",
            [_program("krb5kdc"), "-n", "-r", REALM],
            self._log,
            env=self._environment,
        )
        centre.start()
        centre.wait_for_line("commencing operation", _START_SECONDS)

    def tickets(self) -> set[tuple[str, str]]:
        """Return who was given a ticket for which service so far, each without the realm; the log is a bit late."""
        return {(found[1], found[2]) for found in _ISSUED.finditer(self._log.read_text())}

    @property
    def _environment(self) -> Mapping[str, str]:
        files = {"KRB5_CONFIG": str(self.config), "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf")}
        return {**os.environ, **files}

    def _run(self, command: list[str], lines: str = "") -> None:
        ended = subprocess.run(
            [_program(command[0]), *command[1:]],
            input=lines,
            env=dict(self._environment),
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
        )
        if ended.returncode != 0:
            raise LabError(f"{command[0]} failed: {ended.stderr.strip()}")


def _program(name: str) -> str:
    return shutil.which(name, path=_PATH) or name
