"""Decoders, as far as the core knows them: their keys in the pipeline file."""
