# SPDX-License-Identifier: Apache-2.0
"""Made-up peers for tests: clocks that are moved, and leaders, followers and brokers that do as they are told.

`kafka` is how a leader answers a Fetch and how a follower keeps its session: Kafka's rules, for all tests without
sockets. `conversation` and `session_conversation` script it around one throttle, and the random runs of the promise
have a world around it: tests/quota/model. `relaying`, `metadata_broker` and `servers` are sockets on 127.0.0.1 around a
relay or a client.
"""
