# SPDX-License-Identifier: Apache-2.0
"""The one view of the cluster: what brokers are asked, how often, what they answered, and who takes the answers.

A client, its connections, its polls and the view that they make live here. Decisions about fetches belong in
`quota`, judging clients by their addresses in `weir.proxy.relay.replica_sources`. To ask the cluster for something
else, write another `Poll`.
"""
