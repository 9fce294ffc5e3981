# SPDX-License-Identifier: Apache-2.0
"""Acts on a cluster: topics, reassignments, and the configurations that go with them.

Commands, the lab and the benches use it; a sidecar never changes a cluster.
"""
