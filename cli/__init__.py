# SPDX-License-Identifier: Apache-2.0
"""The command `weir`: its options, and how its results are shown.

`configured` starts a sidecar, and imports none of the command line's libraries. Arithmetic of moves belongs in
`planning`, reading of tables in `pipeline`.
"""
