"""What a run is before Spark starts: its interval, its preflight, where its records are, what a checkpoint says."""
