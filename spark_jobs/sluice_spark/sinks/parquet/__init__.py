"""Staged Parquet files, of which each built-in sink makes its commits; what finds and keeps rows in files."""
