# SPDX-License-Identifier: Apache-2.0
"""Makes one self-contained HTML page from the tables, for `weir report html`.

`read.read_page` queries the tables, `write.page_of` makes the page. It may need neither Spark nor the network.
"""
