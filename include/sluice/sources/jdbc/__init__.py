"""Tables and queries of a PostgreSQL database as a source: their rows are landed once, by a key that grows."""
