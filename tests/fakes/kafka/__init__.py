# SPDX-License-Identifier: Apache-2.0
"""Kafka's own rules as plain data, for the scripted tests (tests/fakes) and for the model (tests/quota/model).

`leader` is how a broker answers a Fetch, from its `logs` and in its `sessions`; `fetcher_session` is the follower's end
of a session. `wire` has the messages, and `take_out` what a leader's sidecar takes out of an answer.
"""
