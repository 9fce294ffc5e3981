"""Replica fetches of one follower over one connection: what each asks for, may have, and has brought.

A fetch is observed (`intake`, `partitions`, `observe`), planned (`plan`, which changes nothing) and committed
(`commit`). On the leader's side `admission` says what may pass of its answer, which is then settled (`settlement`).
`link` calls these in turn.

No I/O belongs in here, and no arithmetic of quotas: that is `weir.quota.budget`.
"""
