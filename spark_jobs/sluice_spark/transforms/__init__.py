"""Transforms, which turn decoded records into the sink's rows: pure functions of a DataFrame."""
