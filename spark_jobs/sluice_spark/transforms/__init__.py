"""From decoded records to the sink's rows: pure functions of a DataFrame."""
