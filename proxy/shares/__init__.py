# SPDX-License-Identifier: Apache-2.0
"""Rates that several sidecars share: they tell each other over their admin servers what they want, and lend."""
