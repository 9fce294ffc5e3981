# SPDX-License-Identifier: Apache-2.0
"""How a Kafka cluster is reached: Kafka's own client properties, for the commands and for the sidecars."""
