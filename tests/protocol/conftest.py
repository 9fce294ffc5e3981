"""Hypothesis without its clock: a busy machine is no fault of the codec. On CI its own profile is the parent."""

from hypothesis import HealthCheck, settings

settings.register_profile("weir", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("weir")
