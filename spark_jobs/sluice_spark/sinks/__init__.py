"""Sinks, one folder each."""
