# SPDX-License-Identifier: Apache-2.0
"""A model of followers, sidecars and leaders on one moved clock, and what must hold in each of its runs.

Everything is plain data and Kafka's own rules; nothing sleeps, and a run is the same each time for the same scenario.
`scenario` draws what an operator may configure, `run` plays it, `promise` and `watch` say what went wrong.
"""
