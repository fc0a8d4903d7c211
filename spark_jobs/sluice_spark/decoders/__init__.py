"""Decoders: they turn a record's value into columns, or name the rule that it breaks."""
