# SPDX-License-Identifier: Apache-2.0
"""What each version of Produce has: Kafka's ProduceRequest.json and ProduceResponse.json as a table."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class ProduceVersion(NamedTuple):
    """One version of Produce."""

    is_transactional: bool
    """Whether requests have a transactional id (v3)."""
    tells_offsets: bool
    """Whether answers have `log_start_offset` (v5): earlier layouts are not read."""
    clients_wait: bool
    """Whether clients are told to wait by `throttle_time_ms` (v8): from v6 on they do (KIP-219), but rskafka, which
    knows v7, sends its records again."""
    tells_record_errors: bool
    """Whether answers have the errors of single records (v8)."""
    is_flexible: bool
    """Whether strings and arrays are compact, and tag buffers follow (v9)."""
    names_topics_by_id: bool
    """Whether topics go by their ids (v13)."""


PRODUCE_VERSIONS: Final[Mapping[int, ProduceVersion]] = {
    version: ProduceVersion(version >= 3, version >= 5, version >= 8, version >= 8, version >= 9, version >= 13)
    for version in range(14)
}
"""The versions that weir reads."""

_LAST: Final = max(PRODUCE_VERSIONS)


def nearest_produce_version(version: int) -> ProduceVersion:
    """Return the row of a version; of one that is not known, the row next to it: the head seldom changes."""
    return PRODUCE_VERSIONS[min(max(version, 0), _LAST)]
