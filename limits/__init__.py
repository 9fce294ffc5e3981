# SPDX-License-Identifier: Apache-2.0
"""Rate limits for clients by records, as KIP-731 has them for Connect tasks: how long a client pauses.

Pure: no I/O, clock, randomness or logging. Which bytes a client moved is counted in `protocol`, and `weir.proxy.limits`
holds its requests.
"""
