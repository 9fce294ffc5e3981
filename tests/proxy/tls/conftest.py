# SPDX-License-Identifier: Apache-2.0
"""Tests of TLS that run with TLS in the sidecar's own process, and again in two others."""

from __future__ import annotations

import pytest

from tests.fakes import relaying


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of modules that say WITH_WORKERS twice."""
    if getattr(metafunc.module, "WITH_WORKERS", False):
        metafunc.fixturenames.append("workers")
        metafunc.parametrize("workers", [0, 2], indirect=True)


@pytest.fixture
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many processes do TLS."""
    monkeypatch.setattr(relaying, "tls_workers", request.param)
    return int(request.param)
