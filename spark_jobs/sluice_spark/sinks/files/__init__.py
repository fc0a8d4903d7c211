"""Parquet files in a folder as a sink, with a manifest that says which of them count."""
