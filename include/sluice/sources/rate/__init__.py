"""Rows that come at a steady rate, as a source: for load tests, and for a first look without a server."""
