# SPDX-License-Identifier: Apache-2.0
"""A chaos run's parts, which `python -m bench.chaos` puts together: faults, what goes on meanwhile, and the oracle."""
