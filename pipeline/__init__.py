"""Batch jobs over exported samples."""
