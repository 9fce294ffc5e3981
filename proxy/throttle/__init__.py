"""The `[throttle]` table in force, made of what the file says and what HTTP changed.

It is read, kept and handed to both sides here. The merge of its layers is pure, and belongs in `weir.quota.layers`.
"""
