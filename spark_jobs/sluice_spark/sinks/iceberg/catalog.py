"""Opens a catalog by its connection, and says what its errors mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from pyiceberg import exceptions as ice
from pyiceberg.catalog import Catalog, load_catalog
from sqlalchemy.exc import SQLAlchemyError

from sluice.connections import Connection, find
from sluice.errors import ConfigError, SinkError, SluiceError, described

__all__ = ["Unknown", "catalog_of", "telling"]

Unknown = (ice.CommitStateUnknownException, SQLAlchemyError, OSError)
"""Errors of a commit that may have happened."""

_MISTAKES = (ice.NoSuchNamespaceError, ice.UnauthorizedError, ice.ForbiddenError, ice.OAuthError, ice.NotInstalledError)


def catalog_of(conn_id: str) -> Catalog:
    """Return the catalog of a connection; one for a process.

    Raises
    ------
    ConfigError
        If the connection is not of type ``iceberg``, or says no catalog.
    SinkError
        If the catalog does not answer.
    """
    return _opened(find(conn_id).to_json(), conn_id)


@cache
def _opened(_: str, conn_id: str) -> Catalog:
    connection = find(conn_id)
    properties = _properties(connection)
    with telling(f"catalog {conn_id}"):
        try:
            return load_catalog(properties.pop("catalog-name", conn_id), **properties)
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"connection {conn_id!r} says no catalog: {described(error)}",
                state="nothing was read or written",
                next_step='write for example {"conn_type":"iceberg","host":"https://catalog.example.com","login":"id",'
                '"password":"...","extra":{"warehouse":"s3://warehouse"}}, or for a catalog in a database '
                '{"conn_type":"iceberg","extra":{"type":"sql","uri":"postgresql+psycopg2://...","warehouse":"file:///..."}}',
            ) from None


def _properties(connection: Connection) -> dict[str, str]:
    """Return a catalog's properties as Airflow's Iceberg provider makes them of a connection."""
    if connection.conn_type not in ("iceberg", ""):
        raise ConfigError(
            f"connection {connection.conn_id!r} is not an Iceberg connection: type {connection.conn_type!r}",
            state="nothing was read or written",
            next_step="write the id of one of type iceberg after sink.iceberg.catalog",
        )
    made = {key: str(value) for key, value in connection.extra.items()}
    if connection.host:
        made["uri"] = connection.host.rstrip("/")
    made.setdefault("type", "rest")
    if made["type"] == "rest" and connection.login and connection.password:
        made["credential"] = f"{connection.login}:{connection.password}"
    return made


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Turn errors of catalogs and of their storage into Sluice's.

    Parameters
    ----------
    what
        The table in words.

    Raises
    ------
    ConfigError
        If no other attempt can succeed.
    SinkError
        Otherwise.
    """
    try:
        yield
    except SluiceError:
        raise
    except _MISTAKES as error:
        raise ConfigError(
            f"{what}: {described(getattr(error, 'orig', None) or error)}",
            state="nothing of this batch was committed; what was committed before stays",
            next_step="correct the connection, the rights or the table; then run again",
        ) from error
    except OSError as error:
        if not any(name in str(error) for name in ("libjvm", "libhdfs")):
            raise _unanswered(what, error) from error
        raise ConfigError(
            f"{what}: hdfs:// URLs cannot be read here: {described(error)}",
            state="nothing was read or written",
            next_step="let Arrow's client find Hadoop's native library (JAVA_HOME, ARROW_LIBHDFS_DIR and CLASSPATH, as "
            "`hadoop classpath --glob` prints it), or choose a warehouse at a path or at s3://",
        ) from error
    except Exception as error:  # pyiceberg's have no base in common, and reading a damaged file ends in anything
        raise _unanswered(what, error) from error


def _unanswered(what: str, error: Exception) -> SinkError:
    return SinkError(
        f"{what}: {described(getattr(error, 'orig', None) or error)}",
        state="nothing of this batch is visible, or all of it; the next run finds out",
        next_step="run again when the catalog and its storage answer",
    )
