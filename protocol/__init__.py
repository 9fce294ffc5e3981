# SPDX-License-Identifier: Apache-2.0
"""Kafka's messages on the wire: framing, headers, Fetch and its sessions, Metadata, record batches.

It turns bytes into messages and back (sans-IO). Nothing here may read a socket, a clock or a log, and no decision about
a fetch belongs here.
"""
