# SPDX-License-Identifier: Apache-2.0
"""How many bytes may go and when: quotas, the ledgers and samples that they count in, and the lines of links that wait.

Kafka's messages and partitions may not be named in here: a quota knows links, ids of replicas, sizes and a clock.
"""
