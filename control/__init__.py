"""Acts on a cluster: topics, reassignments, and the configurations that go with them.

Only the lab uses it; a sidecar never changes a cluster.
"""
