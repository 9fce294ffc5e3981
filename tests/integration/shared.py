# SPDX-License-Identifier: Apache-2.0
"""Brokers that several tests share: they are kept from one test to the next as long as their mode is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.integration.moves import clear
from weir.control.errors import ControlError
from weir.lab.cluster import Cluster
from weir.lab.errors import LabError
from weir.lab.modes import Mode


class SharedCluster:
    """One cluster at a time, which `make` makes for a mode. To be stopped when the last test that may want it is over.

    A test takes it by `lent`, and has topics of its own names.
    """

    def __init__(self, make: Callable[[Mode], Cluster]) -> None:
        self._make = make
        self._running = ExitStack()
        self._mode: Mode | None = None
        self._cluster: Cluster | None = None

    @contextmanager
    def lent(self, mode: Mode) -> Iterator[Cluster]:
        """Lend brokers without a throttle or a topic while the block runs; then their logs hold no new bad sign.

        Brokers that refuse to be cleared are replaced: a ZooKeeper controller does so now and then after a broker stood
        still.
        """
        cluster = self._of(mode)
        before = set(cluster.bad_signs())
        try:
            yield cluster
            assert set(cluster.bad_signs()) - before == set()
            clear(cluster)
        except (ControlError, LabError):
            self.stop()  # what is to be tested was; the next test has brokers of its own
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop what runs; the next test gets new brokers."""
        self._cluster = None
        self._running.close()

    def _of(self, mode: Mode) -> Cluster:
        if self._cluster is None or self._mode != mode:
            self.stop()
            self._cluster, self._mode = self._running.enter_context(self._make(mode)), mode
        return self._cluster
