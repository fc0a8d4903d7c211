"""Lines of a TCP socket."""
