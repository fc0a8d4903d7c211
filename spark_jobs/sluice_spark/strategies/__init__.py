"""What each recovery strategy adds to a live run."""
