"""The data path: listeners, links, and what all links of one side share.

Bytes, sockets and turns of the event loop. What becomes of a fetch is decided in `quota`; nothing here reads a file.
"""
