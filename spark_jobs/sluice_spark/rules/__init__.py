"""Row rules: which decoded records are refused."""
