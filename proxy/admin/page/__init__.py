# SPDX-License-Identifier: Apache-2.0
"""The page at `/` of the admin server: this sidecar live, for people. It reads the admin HTTP and changes nothing."""
