"""A Delta table as a sink: Spark stages files, delta-rs commits them."""
