"""PostgreSQL for source and sink: the URL of a connection, what its errors say, names and texts in SQL."""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode

from sluice.connections import Connection, check_host
from sluice.errors import ConfigError

__all__ = ["WRONG", "literal", "name_of", "text_of", "url_of"]

_KEPT = {
    "application_name": "sluice", "connect_timeout": "10",
    "keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3",
}  # fmt: skip
_NOT_OF_LIBPQ = ("cursor", "iam", "redshift", "aws_conn_id", "cluster-identifier", "dialect", "enable_log_db_messages")
"""Keys in the extra of Airflow's connections that its hook reads, and the server's library does not know."""

WRONG = re.compile(
    r"does not exist|authentication failed|pg_hba\.conf|no password supplied|unexpected spaces|IPv6 host"
    r"|invalid (?:integer|port|URI|sslmode|percent)|unrecognized configuration parameter"
)
"""What libpq says of a wrong connection, in English; without a code."""


def url_of(connection: Connection) -> str:
    """Return the URL that libpq reads; it holds the password.

    Raises
    ------
    ConfigError
        If it is not a connection to a PostgreSQL database.
    """
    if connection.conn_type not in ("postgres", "postgresql", "") or not connection.host:
        raise ConfigError(
            f"connection {connection.conn_id!r} is not a PostgreSQL connection with a host: type "
            f"{connection.conn_type!r}",
            state="nothing was read or written",
            next_step='write it in JSON form, for example {"conn_type":"postgres","host":"localhost","login":"me",'
            '"password":"...","schema":"shop"}, where schema is the name of the database',
        )
    check_host(connection)
    who = quote(connection.login or "", safe="")
    if connection.password:
        who += f":{quote(connection.password, safe='')}"
    # names of several hosts stay as they are; an address of IPv6 needs brackets
    host = quote(connection.host, safe=":,[]" if not connection.host.startswith("/") else "")
    if host.count(":") > 1 and "[" not in host and "," not in host:
        host = f"[{host}]"
    options = _KEPT | {k: str(v) for k, v in connection.extra.items() if k not in _NOT_OF_LIBPQ}
    port = f":{connection.port}" if connection.port else ""
    at = f"{who}@" if who else ""
    asked = urlencode(options, quote_via=quote)  # libpq reads no plus sign as a blank
    return f"postgresql://{at}{host}{port}/{quote(connection.schema or '', safe='')}?{asked}"


def text_of(error: BaseException) -> str:
    """Return what an error says, without what rows hold, the query, and URLs with their passwords."""
    text = " ".join(re.split(r"Query was:|DETAIL:", str(error))[0].split())
    return re.sub(r"postgres(?:ql)?://\S*", "postgresql://...", text)


def name_of(*parts: str) -> str:
    """Return a name as SQL, quoted."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def literal(text: str) -> str:
    """Return a text as SQL."""
    return "'" + text.replace("'", "''") + "'"
