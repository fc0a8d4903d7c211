"""Judging what a run wrote."""
