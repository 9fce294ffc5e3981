"""What a process may do as root, cut down to what capturing needs."""

from __future__ import annotations

import ctypes
import struct
from typing import Final

CAP_NET_ADMIN: Final = 12  # linux/capability.h
_CAPABILITY_VERSION: Final = 0x20080522  # _LINUX_CAPABILITY_VERSION_3: two words of 32 bits for each set
_PR_CAPBSET_READ: Final = 23  # linux/prctl.h
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_RAISE: Final = 2


def keep_only_net_admin() -> str | None:
    """Give up every capability but CAP_NET_ADMIN, for good. Returns why it could not be done; None where it was.

    The kernel keeps capabilities by thread, and a new thread has those of the one that starts it: call it before any
    thread is started. Programs that this process runs have CAP_NET_ADMIN too (ss needs it), and can get no more.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    capability = 0
    while (held := libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0)) >= 0:
        if held and capability != CAP_NET_ADMIN:
            # Only root may; for others `no_new_privs` is enough, as they hold nothing that a program could gain.
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
        capability += 1
    mask = 1 << CAP_NET_ADMIN
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    sets = struct.pack("=6I", mask, mask, mask, 0, 0, 0)  # effective, permitted, inheritable
    if libc.capset(header, sets):
        return f"the kernel keeps this process's capabilities as they are (error {ctypes.get_errno()})"
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, CAP_NET_ADMIN, 0, 0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return f"the kernel lets programs gain privileges (error {ctypes.get_errno()})"
    return None


def advice_for_root(user: int, *, captures: bool) -> str | None:
    """Return what to do instead of running as root, if `user`, whose number it is, is root."""
    if user != 0:
        return None
    if captures:
        return "give a user of its own CAP_NET_ADMIN alone (systemd: AmbientCapabilities=), which is all that it needs"
    return "start it as a user of its own: it needs no privileges"
