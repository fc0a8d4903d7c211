"""From a record's value to columns, or to the rule that it breaks."""
