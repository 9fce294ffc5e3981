# SPDX-License-Identifier: Apache-2.0
"""Keys, certificates and names for TLS: what is loaded from files, and who may be at the other end.

No sockets are in here: `proxy/relay` uses this.
"""
