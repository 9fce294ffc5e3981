# SPDX-License-Identifier: Apache-2.0
"""Limited clients in the range."""

from __future__ import annotations

from typing import Final

from weir.pipeline.open_tables import OpenTables
from weir.pipeline.page.contents import Columns, LimitedClient, LimitedClients
from weir.pipeline.page.moments import micros
from weir.pipeline.tables import WINDOW_SECONDS

_IN_RANGE: Final = """
    FROM limits
    WHERE "window" = $window AND epoch_us(window_start) > $since - $width AND epoch_us(window_start) < $until
"""

_CLIENTS: Final = f"""
    SELECT client_id, max(role), max(connector), max(task), max(record_rate_limit), sum(records),
           max(mean_records_per_second), max(max_records_per_second), sum(throttled_ratio) * $width / 1000000
    {_IN_RANGE}
    GROUP BY client_id ORDER BY 9 DESC, 6 DESC, client_id LIMIT $top
"""

_COUNT: Final = f"SELECT count(DISTINCT client_id) {_IN_RANGE}"


def limited_clients(tables: OpenTables, columns: Columns, finest: str, top: int) -> LimitedClients:
    """Return the `top` clients that waited longest; a finest window that an end of the range cuts counts as a whole."""
    values = {
        "window": finest,
        "width": WINDOW_SECONDS[finest] * 1_000_000,
        "since": micros(columns.since),
        "until": micros(columns.until),
    }
    ((count,),) = tables.rows(_COUNT, **values)
    return LimitedClients(count, tuple(LimitedClient(*row) for row in tables.rows(_CLIENTS, top=top, **values)))
