"""Where rows go. One folder each."""
