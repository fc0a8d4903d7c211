"""Listeners of the local broker that require a login or a certificate, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SCRAM", "Secure"]

SCRAM = "SCRAM-SHA-512"
"""The challenge-and-response mechanism that the listeners accept beside ``PLAIN``."""

_MODULES = {"plain": "plain.PlainLoginModule", SCRAM.lower(): "scram.ScramLoginModule"}


@dataclass(frozen=True)
class Secure:
    """Three further listeners, and access control lists.

    ``SASL_PLAINTEXT`` and ``SASL_SSL`` accept the mechanisms ``PLAIN`` and ``SCRAM-SHA-512``. ``SSL`` accepts clients
    with a certificate signed by ``clients``; the user is the certificate's common name.

    Parameters
    ----------
    users
        Passwords by user. On these listeners users have only rights that were granted; on the plain one they have all.
    pem
        The broker's key and certificate, in one PEM file.
    clients
        The CA certificates for client certificates, in one PEM file.
    sasl_port, ssl_port, mutual_port
        Ports of the listeners without TLS, with TLS, and with certificates on both sides.
    """

    users: Mapping[str, str]
    pem: Path
    clients: Path
    sasl_port: int
    ssl_port: int
    mutual_port: int

    def settings(self, host: str, plain: Mapping[str, object]) -> dict[str, object]:
        """Return the broker settings that these listeners add or change."""
        ports = {"SASL_PLAINTEXT": self.sasl_port, "SASL_SSL": self.ssl_port, "SSL": self.mutual_port}
        more = ",".join(f"{protocol}://{host}:{port}" for protocol, port in ports.items())
        protocols = ",".join(f"{protocol}:{protocol}" for protocol in ports)
        return {
            "listeners": f"{plain['listeners']},{more}",
            "advertised.listeners": f"{plain['advertised.listeners']},{more}",
            "listener.security.protocol.map": f"{plain['listener.security.protocol.map']},{protocols}",
            "sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
            **{
                f"listener.name.{listener}.{mechanism}.sasl.jaas.config": self._login(mechanism)
                for listener in ("sasl_plaintext", "sasl_ssl")
                for mechanism in _MODULES
            },
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.pem,
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.ssl.ssl.truststore.type": "PEM",
            "listener.name.ssl.ssl.truststore.location": self.clients,
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def credentials(self) -> list[str]:
        """Return the arguments for formatting the storage, which contains the users' SCRAM credentials."""
        return [
            word
            for user, password in self.users.items()
            for word in ("--add-scram", f"{SCRAM}=[name={user},password={password}]")
        ]

    def _login(self, mechanism: str) -> str:
        known = ""
        if mechanism == "plain":
            known = "".join(f' user_{user}="{password}"' for user, password in self.users.items())
        return f"org.apache.kafka.common.security.{_MODULES[mechanism]} required{known};"
