# SPDX-License-Identifier: Apache-2.0
"""Looks at a configuration as it stands in the world: at upstreams, names, ports and the machine.

`weir check --live` and `weir doctor` show what it finds. A running sidecar never imports it.
"""
