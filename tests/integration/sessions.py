# SPDX-License-Identifier: Apache-2.0
"""What sidecars tell of fetch sessions."""

from collections import Counter

from weir.lab.cluster import Cluster


def full_fetches(cluster: Cluster) -> Counter[str]:
    """Return how many full fetches followers sent to sidecars, and sidecars to the next hop."""
    counts: Counter[str] = Counter()
    for sidecar in cluster.sidecars.values():
        for sample in sidecar.metrics().samples("weir_full_fetches_total"):
            counts[sample.labels["sender"]] += int(sample.value)
    return counts
