"""How far replicas are behind their leaders (KIP-16), in messages and in time, by what fetches and answers tell.

Nothing in here throttles, and nothing in `quota.budget` or `quota.fetch` depends on a lag.
"""
