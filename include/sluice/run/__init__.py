"""What a run needs before Spark starts: request, interval, preflight, location of records, checkpoint."""
