# SPDX-License-Identifier: Apache-2.0
"""Capture: the kernel leads brokers' connections through the sidecar, and no broker is changed for it.

Redirects of nftables stand in the network namespace of the machine (or pod) for as long as this process holds them. The
kernel takes them out when the process ends, however it ends, and leaves new connections alone when it hangs.
"""
