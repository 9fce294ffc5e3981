# SPDX-License-Identifier: Apache-2.0
"""Moves of partitions as values: assignments, throttles, progress and KIP-73's formulas; and rates as people read them.

Nothing in here may know a running sidecar, a cluster, a file or Spark.
"""
