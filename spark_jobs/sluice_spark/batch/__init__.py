"""One micro-batch: staging, counting, account, quarantine and commit."""
