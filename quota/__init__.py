"""Decisions: rates, budgets, throttled replicas and replica lag. Pure; the clock comes in by the constructor."""
