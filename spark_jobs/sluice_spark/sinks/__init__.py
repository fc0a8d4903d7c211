"""Where rows go: files are staged by Spark, checked, and then committed in one transaction."""
