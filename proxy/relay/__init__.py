# SPDX-License-Identifier: Apache-2.0
"""The data path: listeners, links, and what all links of one side share.

A *link* is a client's connection together with its own connection to the broker. Bytes, sockets and turns of the event
loop belong in here. What becomes of a fetch is decided in `quota`, and nothing here may read a file.
"""
