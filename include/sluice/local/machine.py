"""Free ports of this machine, for local servers."""

from __future__ import annotations

import random
import socket

from sluice.errors import ConfigError

__all__ = ["free_port", "is_free", "is_listening"]

# Below the kernel's range of ephemeral ports. Otherwise a client that keeps connecting to a killed server's port could
# get this port as its own, and the server could not use it again.
_FREE_PORTS = range(20_000, 32_000)


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen on a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str, preferred: int = 0, *, avoid: int = 0) -> int:
    """Return a free port, the preferred one if possible.

    Raises
    ------
    ConfigError
        If all ports are in use.
    """
    if preferred and is_free(host, preferred):
        return preferred
    for port in random.sample(_FREE_PORTS, len(_FREE_PORTS)):
        if port != avoid and is_free(host, port):
            return port
    raise ConfigError(f"no free port on {host} between {_FREE_PORTS[0]} and {_FREE_PORTS[-1]}")


def is_listening(host: str, port: int) -> bool:
    """Return whether a server accepts connections on a port."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
