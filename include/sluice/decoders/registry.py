"""A schema registry, asked by its REST interface: which schema has a number.

The client is Confluent's own. Karapace, and Apicurio by its compatible interface, answer it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sluice.connections import Connection, look_up
from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError, described, quoted

__all__ = ["Registry", "Schema", "ask"]

_STATE = "nothing of the open batch was written; what earlier batches wrote is in the sink"
T = TypeVar("T")


@dataclass(frozen=True)
class Schema:
    """A registered schema.

    Attributes
    ----------
    kind
        ``AVRO``, ``PROTOBUF`` or ``JSON``.
    text
        The schema as it was registered.
    references
        The texts of the schemas that it refers to, each after those that it refers to itself.
    names
        The names by which these are referred to.
    """

    kind: str
    text: str
    references: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Registry:
    """A schema registry by its connection. It can be pickled, and holds secrets, which its ``repr`` does not show.

    Parameters
    ----------
    connection
        The connection's id.
    settings
        Of Confluent's client; None if the connection is not defined here.
    """

    connection: str
    settings: Mapping[str, Any] | None = field(repr=False)

    @classmethod
    def named(cls, connection: str) -> Registry:
        """Return the registry of a connection, which need not be defined yet."""
        found = look_up(connection)
        return cls(connection, None if found is None else _settings(found))

    def schema(self, number: int, *, serialized: bool = False) -> Schema | None:
        """Return the schema with a number; None if the registry says that there is none.

        Parameters
        ----------
        serialized
            Whether the texts are to be those of Protobuf's descriptors, in Base64.

        Raises
        ------
        SourceUnreachableError
            If it does not answer, or answers otherwise than with a schema.
        AuthorizationError
            If it refuses the login.
        ConfigError
            If the connection is not defined, or is not one to a registry.
        """

        def asked(client: Any) -> Schema | None:
            form = {"fmt": "serialized"} if serialized else {}
            found = _found(client, number, **form)
            if found is None:
                return None
            texts: dict[tuple[str, int], tuple[str, str]] = {}
            _gather(client, found, texts, **form)
            names, references = zip(*texts.values(), strict=True) if texts else ((), ())
            return Schema(found.schema_type or "AVRO", _text(found), references, names)

        return self._ask(asked)

    def drafted(self, number: int) -> Schema | None:
        """Return the schema with a number in the form in which its decoder asks for it; as :meth:`schema`."""
        found = self.schema(number)
        return self.schema(number, serialized=True) if found is not None and found.kind == "PROTOBUF" else found

    def check(self) -> None:
        """Check that it answers; raises what :meth:`schema` does."""
        self._ask(lambda client: _found(client, 1))  # what workers ask, too; what that schema is does not matter

    def _ask(self, question: Callable[[Any], T]) -> T:
        if self.settings is None:
            raise ConfigError(
                f"connection {self.connection!r}, the schema registry of the pipeline, is not defined",
                state="nothing was read or written",
                next_step="define it in Airflow with type http, or set AIRFLOW_CONN_"
                f'{self.connection.upper()}=\'{{"conn_type":"http","host":"http://localhost:8081"}}\'',
            )
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
            from confluent_kafka.schema_registry.error import SchemaRegistryError
        except ImportError as error:
            raise ConfigError(
                f"a schema registry cannot be asked here: {error}",
                state="nothing was read or written",
                next_step="install the extra sluice[avro] or sluice[protobuf] where Spark's driver and workers run",
            ) from error
        where = f"the schema registry at {self.settings['url']}"
        try:
            client = SchemaRegistryClient(dict(self.settings))
        except (ValueError, TypeError, OSError) as error:  # OSError: a certificate that is not there
            raise ConfigError(
                f"connection {self.connection!r} is not one to a schema registry: {described(error)}",
                state="nothing was read or written",
                next_step="correct its extra: keys of Confluent's SchemaRegistryClient, such as ssl.ca.location",
            ) from error
        try:
            with client:
                return question(client)
        except SchemaRegistryError as error:
            if error.http_status_code in (401, 403):
                raise AuthorizationError(
                    f"{where} refuses the login of connection {self.connection!r} ({error.http_status_code})",
                    state=_STATE,
                    next_step="correct login and password of the connection, or the rights of its user",
                ) from error
            raise _unreachable(where, f"it answers {error.http_status_code}: {quoted(error.error_message)}") from error
        except SluiceError:
            raise
        except ValueError as error:  # no JSON, or none of a registry's
            step = "correct its address, if that is another service's or a login page's; else run again when it answers"
            raise _unreachable(where, f"its answer is no registry's: {described(error)}", step) from error
        except Exception as error:  # of the HTTP client, by many names
            raise _unreachable(where, described(error)) from error


def ask(connection: str | None) -> None:
    """Check a registry, if a decoder needs one; raises what :meth:`Registry.check` does."""
    if connection is not None:
        Registry.named(connection).check()


def _unreachable(where: str, why: str, step: str = "run again when it answers") -> SourceUnreachableError:
    return SourceUnreachableError(
        f"{where} cannot be asked: {why}", state=_STATE, next_step=f"{step}; the same records are read again"
    )


def _found(client: Any, number: int, **form: str) -> Any:
    """Return the schema with a number; None if the registry says that there is none.

    Only this answer says so. If a schema that it refers to is missing, the record may be whole.
    """
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    try:
        return client.get_schema(number, **form)
    except SchemaRegistryError as error:
        if error.http_status_code == 404 and error.error_code == 40403:
            return None
        raise


def _text(schema: Any) -> str:
    """Return the text of an answer, which a proxy's or a broken registry's does not have."""
    text = schema.schema_str
    if not isinstance(text, str) or not text:
        raise ValueError("its answer has no schema in it")
    return text


def _gather(client: Any, schema: Any, texts: dict[tuple[str, int], tuple[str, str]], **form: str) -> None:
    """Add the schemas that one refers to, each after those that it refers to itself."""
    for reference in schema.references or ():
        place = (reference.subject, reference.version)
        if place in texts:
            continue
        found = client.get_version(*place, **form).schema
        _gather(client, found, texts, **form)
        texts[place] = (str(reference.name), _text(found))


def _settings(connection: Connection) -> dict[str, Any]:
    """Return the settings of Confluent's client for a connection of Airflow's type ``http``."""
    host = connection.host or ""
    if not host:
        raise ConfigError(
            f"connection {connection.conn_id!r} of the schema registry has no host",
            state=_STATE,
            next_step="give it a host, such as http://registry:8081",
        )
    url = host if "://" in host else f"{connection.schema or 'http'}://{host}"
    if connection.port:
        url = f"{url.rstrip('/')}:{connection.port}"
    login = f"{connection.login}:{connection.password or ''}" if connection.login else None
    own = {"url": url, **({"basic.auth.user.info": login} if login else {})}
    extra = {key: value for key, value in connection.extra.items() if "." in key or key in ("proxy", "timeout")}
    return {"timeout": 10, **own, **extra}
