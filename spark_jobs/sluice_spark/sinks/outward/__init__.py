"""Sinks without a transaction, to which staged rows are handed at least once: a writer of one's own, the console."""
