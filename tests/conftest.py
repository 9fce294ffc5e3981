"""For every test: Hypothesis without its clock, for a busy machine is no fault of the code under test.

The profile is global, so it is loaded here and not where some folder's tests would have it by chance. On CI
Hypothesis's own profile for CI is its parent.
"""

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("weir", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("weir")

# A shell has what it starts in the background ignore SIGINT, and so would the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
