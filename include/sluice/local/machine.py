"""What a server of one's own needs of this machine: a Java runtime and free ports."""

from __future__ import annotations

import os
import random
import shutil
import socket

from sluice.errors import ConfigError

__all__ = ["free_port", "is_free", "is_listening", "java"]

# Below the range from which the kernel takes the ports of outgoing connections: a client that keeps knocking at a
# killed server's port would otherwise be given that very port one day, and then the server cannot come back to it.
_FREE_PORTS = range(20_000, 32_000)


def java() -> str:
    """Return the ``java`` program, of ``JAVA_HOME`` when that is set.

    Raises
    ------
    ConfigError
        When there is none.
    """
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(f"{home}/bin/java") if home else shutil.which("java")
    if program is None:
        raise ConfigError(
            f"no java in JAVA_HOME={home}" if home else "no java on the PATH",
            state="nothing was started",
            next_step="install a Java 17 runtime (apt-get install openjdk-17-jre-headless) or set JAVA_HOME",
        )
    return program


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str, preferred: int = 0, *, avoid: int = 0) -> int:
    """Return a port nobody listens on, the preferred one if that can be.

    Raises
    ------
    ConfigError
        When all are taken.
    """
    if preferred and is_free(host, preferred):
        return preferred
    for port in random.sample(_FREE_PORTS, len(_FREE_PORTS)):
        if port != avoid and is_free(host, port):
            return port
    raise ConfigError(f"no free port on {host} between {_FREE_PORTS[0]} and {_FREE_PORTS[-1]}")


def is_listening(host: str, port: int) -> bool:
    """Whether a server accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
