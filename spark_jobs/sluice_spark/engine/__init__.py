"""Spark itself: the session, its failures by type, progress, logs."""
