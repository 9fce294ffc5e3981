# SPDX-License-Identifier: Apache-2.0
"""What people and Prometheus get from a sidecar: health, metrics, status, and the throttle over HTTP.

It reads the plain integers that the data path counts. Nothing but the throttle may be changed from here.
"""
