"""The `[throttle]` table in force: what the file says, and what HTTP changed.

The merge itself is `quota.layers`; here it is read, kept and handed to both sides.
"""
