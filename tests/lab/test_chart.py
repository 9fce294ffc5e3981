# SPDX-License-Identifier: Apache-2.0
import struct
from pathlib import Path

import pytest

from tests.lab.curves import by_second, steady
from weir.lab.capture_chart import draw_shared_link
from weir.lab.chart import draw_rates

pytestmark = pytest.mark.long


def size_of(path: Path) -> tuple[int, int]:
    """Width and height (pixels) of a PNG."""
    head = path.read_bytes()[:24]
    assert head[:16] == b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR"
    width, height = struct.unpack(">II", head[16:])
    return width, height


def test_chart_has_a_panel_for_each_move(tmp_path: Path) -> None:
    moves = {"weir": steady(5_000_000, 4.0), "Kafka's own throttle": by_second([9_500_000, 0, 9_500_000, 0])}
    draw_rates(tmp_path / "two.png", moves, 5_000_000)
    draw_rates(tmp_path / "one.png", {"weir": moves["weir"]}, 5_000_000)
    width, height = size_of(tmp_path / "one.png")
    assert size_of(tmp_path / "two.png") == (2 * width, height)


def test_chart_of_a_shared_link_is_drawn(tmp_path: Path) -> None:
    ways = {"without": ([0.0, 15e6], [0.01, 2.0]), "with": ([0.0, 8e6], [0.01, 0.02])}
    draw_shared_link(tmp_path / "link.png", ways, 1, 20_000_000)
    assert size_of(tmp_path / "link.png") == (1100, 600)
