"""The one view of the cluster: what brokers are asked, how often, what they answered, and who gets the answers.

A client, its channels to a broker, the polls and their subscribers live here. Decisions about fetches belong in
`quota`, judging clients by their addresses in `weir.proxy.relay.replica_sources`. To ask the cluster for something
else, write another `Poll`.
"""
