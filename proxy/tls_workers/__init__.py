# SPDX-License-Identifier: Apache-2.0
"""Processes that end and begin TLS for a sidecar, which then has plaintext on its own side of a socketpair.

Decisions, quotas, admin and metrics stay with the sidecar. A worker is a pump with keys: `pool` starts them and hands
connections over, `worker` is what runs in them.
"""
