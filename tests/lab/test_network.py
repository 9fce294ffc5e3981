# SPDX-License-Identifier: Apache-2.0
import socket
from pathlib import Path

import pytest

from weir.lab import network
from weir.lab.errors import LabError
from weir.lab.network import LOOPBACK, Ports, egress_address, ephemeral_range


def test_ports_are_distinct_and_below_the_ephemeral_range() -> None:
    with Ports((LOOPBACK, egress_address(1))) as ports:
        taken = [ports.take() for _ in range(20)]
    assert len(set(taken)) == 20
    assert max(taken) < ephemeral_range()[0]


def test_port_claimed_by_another_lab_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between taking a port and a broker's listening on it, another lab on this machine must not take it too."""
    with Ports() as first, Ports() as second:
        port = first.take()
        monkeypatch.setattr(second, "_random", Always(port))
        with pytest.raises(LabError, match="No free port"):
            second.take()
        first.close()
        assert second.take() == port


def test_port_in_use_on_any_address_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with Ports((LOOPBACK, egress_address(1))) as ports, socket.socket() as listener:
        listener.bind((egress_address(1), 0))
        listener.listen()
        monkeypatch.setattr(ports, "_random", Always(listener.getsockname()[1]))
        with pytest.raises(LabError, match=r"127\.0\.1\.1"):
            ports.take()


def test_ports_come_from_the_kernel_where_it_uses_nearly_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "ephemeral_range", lambda: (1024, 65535))
    with Ports() as ports:
        assert ports.take() >= 1024


@pytest.mark.parametrize(
    ("content", "expected"), [("32768\t60999\n", (32768, 60999)), ("nonsense", (32768, 60999)), (None, (32768, 60999))]
)
def test_ephemeral_range_falls_back_to_linuxs(tmp_path: Path, content: str | None, expected: tuple[int, int]) -> None:
    file = tmp_path / "range"
    if content is not None:
        file.write_text(content)
    assert ephemeral_range(file) == expected


class Always:
    """Stands in for random.Random: its every choice is the same port."""

    def __init__(self, port: int) -> None:
        self._port = port

    def randrange(self, low: int, high: int) -> int:
        return self._port
