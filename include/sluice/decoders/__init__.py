"""How a record's value becomes columns: what the pipeline file says of it."""
