"""The one view of the cluster: what brokers are asked for, how often, what they told, and who takes it.

Here: a client, its channels to a broker, what it polls, and what passes answers on. Not here: decisions about fetches
(quota/), and what a listener makes of addresses (proxy.replica_sources). To ask for something more, write a `Poll`.
"""
