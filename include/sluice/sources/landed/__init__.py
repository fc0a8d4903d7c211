"""Rows of a source that cannot be read again: they are landed in files first, and a book gives them offsets."""
