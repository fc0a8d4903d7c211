"""What a strategy adds to a run, one file each."""
