"""The configuration file: its tables, how they are read, and what is wrong with them in one sentence.

Nothing here opens a socket: what a name leads to is looked up, and no more.
"""
