"""Where a batch's records can be read, and read again."""
