# SPDX-License-Identifier: Apache-2.0
"""Errors that end a job, each told in one sentence."""


class BuildError(Exception):
    """Tables cannot be built. The text is a sentence without the full stop."""
