"""A kafka-python client with deadlines, which leaves no threads behind.

It works around four pitfalls of kafka-python 3.0.12:

- A constructor that cannot reach a broker leaks its thread.
- A refused login and an untrusted certificate appear only in its log; the caller sees a timeout.
- If a broker's last message (such as why it refuses a login) arrives together with the end of the connection, the
  message is dropped.
- Blocking calls wait without a limit.

It uses internals of the client (``_manager``, ``_net``) because the public calls answer for all partitions or for none.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError, described
from sluice.sources.kafka.settings import KafkaSettings

__all__ = ["UNTOUCHED", "Client"]

T = TypeVar("T")

UNTOUCHED = "nothing was read or written; the position stays where it was"

_LOG = logging.getLogger("kafka.net")
_REFUSED_CERTIFICATE = re.compile(r"\[SSL: \w*ALERT\w*(?:CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED)\w*\] ([\w ]+)")
"""A broker's answer if it demands a client certificate, and gets none or one that it does not trust."""
_UNUSABLE = ssl.SSLError | FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError
_IN_FLIGHT = 1000
"""Maximum number of requests in flight per connection; kafka-python refuses more instead of queueing them."""


class Client:
    """An open client, which several threads may use. Create it with :meth:`open`."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self._pid = os.getpid()
        self._nets: list[Any] = []
        self._admin: Any = None
        self._closed = False
        self._ear = _Ear(self._is_mine)

    @classmethod
    def open(cls, settings: KafkaSettings, timeout: float) -> Client:
        """Connect and log in.

        Raises
        ------
        SourceUnreachableError
            If no broker answers within ``timeout`` seconds.
        AuthorizationError
            If the broker refuses the login; raised at once.
        ConfigError
            If the connection's settings cannot work, such as a missing file, or a certificate that is not signed by
            ``ssl.ca.location``; raised at once.
        """
        deadline = time.monotonic() + timeout
        _calm()
        settings.check_authorities()
        probe(settings, min(5.0, timeout))
        client = cls(settings)
        _LOG.addHandler(client._ear)
        thread = threading.Thread(target=client._connect, args=(timeout,), name="sluice-kafka-connect", daemon=True)
        thread.start()
        client._ear.settled.wait(max(0.0, deadline - time.monotonic()))
        error = client._ear.error(settings) or (None if client._admin else client._ear.failure)
        if error is not None or client._admin is None:
            last = client._ear.last
            client.close()
            if isinstance(error, SluiceError):
                raise error
            raise unreachable(settings, described(error) if error else f"no answer within {timeout:.0f} s", last)
        return client

    def ask(self, question: Callable[[Client], Awaitable[T]], timeout: float) -> T:
        """Run a coroutine on the client's thread and wait for it.

        Raises
        ------
        TimeoutError
            If it takes longer than ``timeout`` seconds; the client is unusable then.
        SluiceError
            If the broker refused the client while it was connecting to further nodes.
        kafka.errors.KafkaError
            For any other failure.
        """
        from kafka.errors import KafkaConnectionError

        done, box = threading.Event(), dict[str, Any]()

        async def waiter() -> None:
            try:
                box["value"] = await question(self)
            except BaseException as error:  # GeneratorExit, too: the client is being closed by another thread
                box["error"] = error
            finally:
                done.set()

        try:
            self._net.call_soon_threadsafe(waiter)
        except RuntimeError as error:
            raise KafkaConnectionError(str(error)) from error
        if not done.wait(timeout):
            raise self._ear.error(self.settings) or TimeoutError
        failure = box.get("error")
        if isinstance(failure, GeneratorExit | RuntimeError) and self._closed:
            raise KafkaConnectionError("the client was closed") from failure
        if failure is not None:
            raise self._ear.error(self.settings) or failure
        value: T = box["value"]
        return value

    def send(self, request: Any, node: int | None = None) -> Any:
        """Send a request to a node, or to any node, and return a future. Call it on the client's thread."""
        from kafka.errors import KafkaError
        from kafka.future import Future

        try:
            return self._admin._manager.send(request, node_id=node)
        except KafkaError as error:  # such as a node that the metadata no longer names
            return Future().failure(error)

    def within(self, future: Any, until: float) -> Any:
        """Wait for an answer until a time of the monotonic clock, in seconds. Call it on the client's thread."""
        left = max(1.0, (until - time.monotonic()) * 1000)
        return self._admin._manager.wait_for(future, left)

    def sleep(self, seconds: float) -> Any:
        """Wait. Call it on the client's thread."""
        return self._net.sleep(seconds)

    def close(self) -> None:
        """Close the client and end its thread. In a forked child do nothing: parent and child share the sockets."""
        _LOG.removeHandler(self._ear)
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        # joining a thread that waits for a name server takes a while, and the caller should not wait for that
        closer = threading.Thread(target=self._close, name="sluice-kafka-close", daemon=True)
        closer.start()
        closer.join(1.0)

    def _close(self) -> None:
        if self._admin is not None:
            self._admin.close()
        for net in self._nets:
            net.close()

    @property
    def _net(self) -> Any:
        return self._admin._manager._net

    def _is_mine(self, thread: int | None) -> bool:
        return any(getattr(net._net._io_thread, "ident", None) == thread for net in self._nets)

    def _make_net(self, **config: Any) -> Any:
        from kafka.net.compat import KafkaNetClient

        if self._closed:
            raise RuntimeError("closed while connecting")
        net = KafkaNetClient(**config)
        self._nets.append(net)  # kafka-python loses the reference if it cannot bootstrap
        build = net._manager._build_transport

        async def build_transport(*args: Any, **kwargs: Any) -> Any:
            return _hears_last_words(await build(*args, **kwargs))

        net._manager._build_transport = build_transport
        return net

    def _connect(self, timeout: float) -> None:
        from kafka.admin import KafkaAdminClient

        budget = max(1, int(timeout * 1000))
        config = {"request_timeout_ms": budget, **self.settings.for_python()}
        try:
            admin = KafkaAdminClient(
                **config,
                bootstrap_timeout_ms=budget,
                max_in_flight_requests_per_connection=_IN_FLIGHT,
                kafka_client=self._make_net,
            )
        except Exception as error:
            self._ear.failure = error
            self._ear.hear(error)
        else:
            self._admin = admin
            if self._closed:  # the caller gave up in the meantime
                self._close()
        finally:
            self._ear.settled.set()


class _Ear(logging.Handler):
    """Finds the errors of one client in kafka-python's log."""

    def __init__(self, is_mine: Callable[[int | None], bool]) -> None:
        super().__init__(logging.WARNING)
        self._is_mine = is_mine
        self.settled = threading.Event()
        self.failure: Exception | None = None
        self.last = ""
        self._refused = ""
        self._unusable = ""

    def emit(self, record: logging.LogRecord) -> None:
        problem = next((a for a in record.args or () if isinstance(a, Exception)), None)
        if problem is not None and self._is_mine(record.thread):
            self.hear(problem)

    def hear(self, problem: Exception) -> None:
        """Record an error that waiting does not fix."""
        from kafka import errors

        self.last = described(problem)
        kinds = (
            errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError, errors.AuthorizationError,
        )  # fmt: skip
        if isinstance(problem, kinds):
            self._refused = str(problem).rpartition("Error: ")[2] or type(problem).__name__
        elif alert := _REFUSED_CERTIFICATE.search(str(problem)):
            self._refused = f"the client's certificate, or its absence: {alert[1]}"
        elif isinstance(problem, _UNUSABLE | errors.KafkaConfigurationError):
            self._unusable = str(problem)
        elif "CERTIFICATE_VERIFY_FAILED" in str(problem):
            self._unusable = str(problem).rpartition("Error: ")[2].rpartition("] ")[2]
        if self._refused or self._unusable:
            self.settled.set()

    def error(self, settings: KafkaSettings) -> SluiceError | None:
        """Return the typed error of a problem that waiting does not fix; None if there is none."""
        if self._refused:
            return refused(settings, self._refused)
        if self._unusable:
            return ConfigError(
                f"cannot connect to Kafka at {settings.bootstrap} with these settings: {self._unusable}",
                state=UNTOUCHED,
                next_step="fix the connection's extra; if a certificate is not trusted, fix ssl.ca.location",
            )
        return None


def _calm() -> None:
    """Keep kafka-python's twenty lines about each connection out of Airflow's task logs, unless a level was chosen."""
    log = logging.getLogger("kafka")
    if log.level == logging.NOTSET:
        log.setLevel(logging.WARNING)


def probe(settings: KafkaSettings, timeout: float) -> None:
    """Check whether any server accepts connections: faster than bootstrapping a client, and with a clearer error.

    Raises
    ------
    SourceUnreachableError
        If none does; with the reason for each.
    """
    problems = []
    for server in settings.bootstrap.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout):
                return
        except (OSError, ValueError, OverflowError) as error:
            problems.append(f"{server.strip()}: {error}")
    raise unreachable(settings, "; ".join(problems))


def unreachable(settings: KafkaSettings, why: str, last: str = "") -> SourceUnreachableError:
    """Return the error for a broker that does not answer."""
    return SourceUnreachableError(
        f"Kafka at {settings.bootstrap} cannot be reached: {why}" + (f" ({last})" if last and last not in why else ""),
        state=UNTOUCHED,
        next_step="start the broker, or fix bootstrap.servers or security.protocol; the next run catches up",
    )


def refused(settings: KafkaSettings, why: str) -> AuthorizationError:
    """Return the error for a broker that refuses access."""
    return AuthorizationError(
        f"Kafka at {settings.bootstrap} refused: {why}",
        state=UNTOUCHED,
        next_step="grant the user DESCRIBE and READ on the topics, or fix the connection's credentials",
    )


def _hears_last_words(transport: Any) -> Any:
    """Patch a transport to deliver the data that arrived together with the end of the connection, before that end."""
    receive, ends = transport._sock_recv, list[Exception]()

    def receive_all() -> tuple[bytes, Exception | None]:
        if ends:
            return b"", ends.pop()
        data, end = receive()
        if data and end is not None:
            ends.append(end)
            end = None
        return data, end

    transport._sock_recv = receive_all
    return transport
