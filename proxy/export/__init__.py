"""Samples on their way out: cut off every interval, made into lines, and handed to files or a Kafka topic.

Never waited for by the data path: a sink that is slow or full loses samples, and says so in its counters.
"""
