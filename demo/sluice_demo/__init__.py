"""The demos, and the servers and data that they start and feed; tests and benches use them, too. It is in no wheel."""
