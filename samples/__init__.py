# SPDX-License-Identifier: Apache-2.0
"""What a sidecar writes down every few seconds: the schema of its lines, and how counters become lines.

Readers of samples (the Spark jobs) import `schema` alone. No I/O belongs in here: `weir.proxy.export` writes the lines.
"""
