"""A folder into which others put files, as a source: what is in it, and which rows of it have which offsets."""
