"""The kinds of runs (live, interval, redrive), and the frame that they share."""
