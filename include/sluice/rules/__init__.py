"""What a pipeline file says of row rules."""
