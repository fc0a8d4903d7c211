"""The first draft of a pipeline file and of its suite, from a sample of a topic."""
