"""One micro-batch: what was read, written and refused, and its commit."""
