# SPDX-License-Identifier: Apache-2.0
"""Limits for clients on the wire: requests of clients that `[[limits.client]]` names are counted, and held."""
