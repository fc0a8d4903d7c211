"""A table of a PostgreSQL database as a sink."""
