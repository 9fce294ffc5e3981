# SPDX-License-Identifier: Apache-2.0
"""Batch jobs on Spark, from exported samples to tables; and what is read from the tables afterwards, with DuckDB.

Transformations are pure functions from DataFrames to DataFrames, and no Python runs on a row. Of the sidecar only
`weir.samples.schema` may be imported. `page` makes HTML of the tables.
"""
