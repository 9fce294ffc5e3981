# SPDX-License-Identifier: Apache-2.0
"""The sidecar's sockets and its event loop: listeners and links, configuration, cluster view, admin HTTP, export.

Decisions about fetches belong in `quota`, and layouts of Kafka's messages in `protocol`.
"""
