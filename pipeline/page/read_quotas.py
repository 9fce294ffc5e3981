# SPDX-License-Identifier: Apache-2.0
"""Reads how exactly quotas were kept in a range."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from weir.pipeline.open_tables import OpenTables
from weir.pipeline.page.contents import Accuracy, QuotaAccuracy
from weir.pipeline.page.moments import MINUTE_MICROS, micros, with_times

# A span that the range cuts has the figures of its minutes in the range. One whose table is too old to have minutes is
# told as a whole: it `reaches_out`.
_QUOTAS: Final = """
    CREATE VIEW quotas AS
    WITH spans AS (
        SELECT *, epoch_us(start) AS start_us, epoch_us("end") AS end_us,
               start_us < {since} OR end_us > {until} AS is_cut
        FROM throttle_accuracy WHERE epoch_us(start) < {until} AND epoch_us("end") > {since}
    ), parts AS (
        SELECT broker_id, side, quota_id, start, coalesce(bool_or(is_in), false) AS is_in,
               sum(seconds) FILTER (is_in) AS seconds,
               max(worst_1s_over_quota) FILTER (is_in) AS worst_1s,
               max(worst_10s_over_quota) FILTER (is_in) AS worst_10s,
               sum(seconds_over) FILTER (is_in) AS seconds_over,
               sum(seconds_left_out) FILTER (is_in) AS seconds_left_out,
               greatest(0, sum(bytes_left_out) FILTER (is_in)) AS bytes_left_out
        FROM (SELECT *, epoch_us(window_start) > {since} - {minute} AND epoch_us(window_start) < {until} AS is_in
              FROM throttle_minutes SEMI JOIN (SELECT * FROM spans WHERE is_cut)
                USING (broker_id, side, quota_id, start))
        GROUP BY ALL
    ), whole AS (
        SELECT broker_id, side, quota_id, rate_bytes_per_second AS rate, policy, start_us, end_us, seconds,
               worst_1s_over_quota AS worst_1s, worst_10s_over_quota AS worst_10s, seconds_over, seconds_left_out,
               bytes_left_out, is_cut AS reaches_out
        FROM spans ANTI JOIN parts USING (broker_id, side, quota_id, start)
        UNION ALL
        SELECT broker_id, side, quota_id, rate_bytes_per_second, policy, greatest(start_us, {since}),
               least(end_us, {until}), parts.seconds, worst_1s, worst_10s,
               parts.seconds_over, parts.seconds_left_out, parts.bytes_left_out, false
        FROM spans JOIN parts USING (broker_id, side, quota_id, start) WHERE is_in
    )
    SELECT broker_id, side, quota_id, rate, policy, count(*) AS spans, min(start_us) AS start_us, max(end_us) AS end_us,
           sum(seconds) AS seconds, max(worst_1s) AS worst_1s, max(worst_10s) AS worst_10s,
           sum(seconds_over) AS seconds_over, sum(seconds_left_out) AS seconds_left_out,
           sum(bytes_left_out) AS bytes_left_out, bool_or(reaches_out) AS reaches_out
    FROM whole GROUP BY broker_id, side, quota_id, rate, policy
"""

_TOTALS: Final = "SELECT count(*), max(worst_1s), count(*) FILTER (reaches_out) FROM quotas"

_WORST: Final = """
    SELECT broker_id, side, quota_id, rate, policy, spans, start_us, end_us, seconds, worst_1s, worst_10s,
           seconds_over, seconds_left_out, bytes_left_out
    FROM quotas ORDER BY worst_1s DESC NULLS LAST, broker_id, side, quota_id, rate, policy LIMIT $top
"""


def accuracy(tables: OpenTables, since: datetime, until: datetime, top: int) -> Accuracy:
    """Return the `top` quotas with the worst seconds from `since` up to but without `until`."""
    tables.rows(_QUOTAS.format(since=micros(since), until=micros(until), minute=MINUTE_MICROS))
    shown = tuple(QuotaAccuracy(*with_times(row, 6, 7)) for row in tables.rows(_WORST, top=top))
    count, worst_1s, reaching_out = tables.rows(_TOTALS)[0]
    return Accuracy(count, worst_1s, shown, reaching_out)
