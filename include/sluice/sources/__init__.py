"""Where records come from: what can be asked of a source without Spark. One folder each."""
