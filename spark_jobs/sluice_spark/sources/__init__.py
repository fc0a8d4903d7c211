"""Sources, which read a batch's records and read them again."""
