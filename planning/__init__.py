"""The arithmetic of a planned move (KIP-73's formulas), and rates and sizes as people read them.

Numbers come in, numbers go out: nothing in here may know a running sidecar, a file or Spark.
"""
