# SPDX-License-Identifier: Apache-2.0
"""weir bounds Kafka's replication traffic on the wire. Each room is a folder at the top of the repository."""
