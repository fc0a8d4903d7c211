"""Sinks, as far as the core knows them: their keys in the pipeline file, and what they can do. One file each."""
