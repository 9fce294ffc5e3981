"""What a sidecar writes down every few seconds: the schema of its lines, and how they are made of counters.

Readers of samples (the Spark jobs) need `schema` alone. No I/O: `proxy.export.exporter` writes the lines.
"""
