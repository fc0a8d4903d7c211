"""Everything about Spark itself: session, typed failures, progress, logs."""
