"""One follower's fetches over one connection: what it asks for, what it may have now, and what came of it.

A fetch is observed (`context`, `partitions`), planned (`plan`, a pure function), committed (`commit`), and its answer
is settled (`settlement`). `link` holds these together. No I/O, and no quota's arithmetic: that is `quota.budget`.
"""
