# SPDX-License-Identifier: Apache-2.0
"""Replica fetches of one follower over one connection: what each asks for, may have, and has brought.

`link` has a fetch taken in (`intake`), looked at and planned (`plan`, which changes nothing) and committed (`commit`),
and its answer settled (`settlement`). No arithmetic of quotas belongs in here: that is `weir.quota.budget`.
"""
