"""Made-up peers for tests: clocks that are moved, and leaders, followers and brokers that do as they are told.

`conversation` and `session_conversation` are plain data around one throttle; `relaying`, `metadata_broker` and
`servers` are sockets on 127.0.0.1 around a relay or a client.
The random runs of the promise have a world of their own: tests/quota/model.
"""
