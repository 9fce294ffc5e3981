# SPDX-License-Identifier: Apache-2.0
"""Lines of one partition each, put into columns: the other way round than `weir.samples.schema.by_partition`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from weir.samples.schema import BLOCK, Line, PartitionColumns, PartitionLine, PartitionsLine


def in_columns(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines, with those of each topic, side, peer and block in one."""
    blocks: defaultdict[tuple[Any, ...], list[PartitionLine]] = defaultdict(list)
    for line in lines:
        if isinstance(line, PartitionLine):
            blocks[line.side, line.peer, line.topic, line.partition // BLOCK].append(line)
        else:
            yield line
    for (side, peer, topic, block), found in blocks.items():
        shared = {name: getattr(found[0], name) for name in Line.__struct_fields__}
        columns = PartitionColumns(**{name: _column(name, found) for name in PartitionColumns.__struct_fields__})
        yield PartitionsLine(**shared, side=side, peer=peer, topic=topic, block=block, columns=columns)


def _column(name: str, lines: list[PartitionLine]) -> tuple[Any, ...]:
    if name == "lag_ms":
        values = tuple(None if line.lag_seconds is None else round(line.lag_seconds * 1000) for line in lines)
    else:
        values = tuple(getattr(line, name) for line in lines)
    return () if name != "partition" and all(value == 0 for value in values) else values
