# SPDX-License-Identifier: Apache-2.0
"""Hooks of the tests of this folder."""

from tests.fakes.relaying import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
