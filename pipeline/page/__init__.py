"""One self-contained HTML page from the tables: `weir report html`.

`read.read_page` asks the tables, `write.page_of` makes the page. No Spark, no network.
"""
