# SPDX-License-Identifier: Apache-2.0
"""How far replicas lag behind their leaders (KIP-16), in messages and in seconds, as fetches and answers show it.

Nothing in here throttles, and no decision in `weir.quota.budget` or `weir.quota.fetch` may depend on a lag. Only when a
replica had last caught up is asked for, as no connection remembers that of the one before.
"""
