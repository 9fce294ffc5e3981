# SPDX-License-Identifier: Apache-2.0
"""One rate for several sidecars: how much of it each may use now.

With N members each may use rate / N while nothing better is agreed. One of those that want more divides the rate: once
a round it gives each other one a part by demand. The parts never sum to more than the rate, whatever happens to
messages and members, and clocks need not agree.
"""
