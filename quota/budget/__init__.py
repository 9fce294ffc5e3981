"""How many bytes may go, and when: quotas, what they measure by, and who stands in line for them.

Nothing in here knows Kafka's messages or partitions: a quota sees links, replicas' ids, sizes and a clock.
"""
