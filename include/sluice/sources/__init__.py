"""Sources: their keys in the pipeline file, and what they answer without Spark. One folder each."""
