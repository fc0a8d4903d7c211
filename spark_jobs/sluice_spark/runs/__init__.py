"""The kinds of runs (live, interval, redrive), and what they share."""
