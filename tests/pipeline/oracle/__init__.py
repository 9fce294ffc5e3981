# SPDX-License-Identifier: Apache-2.0
"""All tables once more, in plain Python and from the documentation, to hold what the Spark job writes against.

Nothing here uses the code of the job but the names and types of its columns.
"""
