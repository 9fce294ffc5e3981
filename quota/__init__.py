# SPDX-License-Identifier: Apache-2.0
"""Decisions: quotas and their budgets, plans of what a fetch may take, throttled replicas, replica lag.

Everything is pure: no I/O, randomness or logging, and the clock comes in by the constructor. Only `protocol` may be
imported; sockets and files belong in `proxy`.
"""
