"""The arithmetic of a planned move: KIP-73's formulas, and the units of people.

It knows neither a running sidecar nor Spark: numbers come in, numbers go out.
"""
