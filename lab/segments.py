# SPDX-License-Identifier: Apache-2.0
"""A replica's segment files: where they are, how large, and whether two replicas hold the same bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

from weir.lab.errors import LabError

_CHUNK = 1 << 20


class SegmentsDiffer(LabError):
    """Two replicas' logs are not the same bytes.

    Fields: `partition` (topic-partition), `position` of the first differing byte, counted over all segments; `sizes` of
    both.
    """

    def __init__(self, partition: str, position: int, sizes: tuple[int, int]) -> None:
        self.partition = partition
        self.position = position
        self.sizes = sizes
        super().__init__(
            f"{partition}: the logs differ from byte {position} on (sizes {sizes[0]} and {sizes[1]} bytes)."
        )


def segment_files(data: Path, topic: str, partition: int) -> list[Path]:
    """Return the segments of a replica in offset order (a name is a base offset); none while it does not exist."""
    with suppress(FileNotFoundError):  # the folder may go while it is read, however soon after it was found
        return sorted((data / f"{topic}-{partition}").glob("*.log"))
    return []


def replica_size(data: Path, topic: str, partition: int) -> int:
    """Return the bytes in a replica's segments, as the file system tells; 0 while it does not exist."""
    return ReplicaSize(data, topic, partition).read()


class ReplicaSize:
    """The bytes in a replica's segments, for repeated reading: files are listed again only when some came or went.

    A segment that is deleted while it is being read counts as 0.
    """

    __slots__ = ("_changed", "_files", "_folder")

    def __init__(self, data: Path, topic: str, partition: int) -> None:
        self._folder = str(data / f"{topic}-{partition}")
        self._changed = -1  # when the folder's list of files last changed
        self._files: list[str] = []

    def read(self) -> int:
        """Return the size now, 0 while the replica does not exist."""
        total = 0
        with suppress(FileNotFoundError, NotADirectoryError):
            changed = os.stat(self._folder).st_mtime_ns
            if changed != self._changed:
                with os.scandir(self._folder) as entries:
                    self._files = [entry.path for entry in entries if entry.name.endswith(".log")]
                self._changed = changed
            for file in self._files:
                with suppress(FileNotFoundError):
                    total += os.stat(file).st_size
        return total


def compare_logs(partition: str, first: Sequence[Path], second: Sequence[Path]) -> int:
    """Compare two replicas byte for byte and return how many bytes they are. Raises SegmentsDiffer.

    The segments of each are read as one stream: a follower may have rolled to a new segment at another batch than its
    leader.
    """
    sizes = (_total(first), _total(second))
    position = 0
    for ours, theirs in zip_longest(_chunks(first), _chunks(second), fillvalue=b""):
        if ours != theirs:
            alike = next(
                (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
            )
            raise SegmentsDiffer(partition, position + alike, sizes)
        position += len(ours)
    return position


def _total(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _chunks(files: Sequence[Path]) -> Iterator[bytes]:
    """Yield the files' bytes as one stream, in chunks of one size however the files are cut."""
    held = b""
    for path in files:
        with path.open("rb") as file:
            while piece := file.read(_CHUNK - len(held)):
                held += piece
                if len(held) == _CHUNK:
                    yield held
                    held = b""
    if held:
        yield held
