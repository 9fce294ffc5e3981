"""Real Kafka on loopback."""
