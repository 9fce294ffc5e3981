"""Kafka's bytes to messages and back. Sans-IO: nothing here reads a socket, a clock or a log."""
