"""Where rows go: what the pipeline file says of it, and what it can do. One file each."""
