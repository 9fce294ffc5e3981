# SPDX-License-Identifier: Apache-2.0
"""The throttle in force: the `[throttle]` table, what Kafka's own configurations ask for, and what HTTP changed."""
