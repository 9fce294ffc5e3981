# SPDX-License-Identifier: Apache-2.0
"""The configuration file: its tables, how they are read, and what is wrong with them in one sentence.

No connection may be opened in here; host names are resolved only where a route may loop.
"""
