"""The Arrow path: ranges are read, decoded and written in Python workers, and no record crosses into the JVM.

It accepts a record only if it is sure to decode to the same row as on the Spark path. Any other record is set aside
verbatim, and a range that cannot be read is declined; both go through the Spark path in the same batch.
``docs/arrow.md`` argues why the guard is right.
"""
