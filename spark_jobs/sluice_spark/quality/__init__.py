"""Validation of what a run wrote."""
