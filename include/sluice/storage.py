"""Opens the file system of a path or a URL."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from sluice.errors import AuthorizationError, ConfigError, SinkError, SluiceError

__all__ = [
    "DENIALS",
    "ESCAPED",
    "file_system",
    "has_secret",
    "in_arrows_reach",
    "is_url",
    "make_folder",
    "opened_url",
    "remove",
    "told_by_store",
]

_S3 = ("s3", "s3a")
DENIALS = (
    "AccessDenied", "AccountProblem", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch",
    "ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "EXPIRED_TOKEN", "403 Forbidden",
    "lacked the necessary privileges",
    "Bad Request (Service: S3, Status Code: 400",  # of a HEAD with an expired token, whose answer has no body
)  # fmt: skip
"""Error codes of S3's clients for credentials that the store refuses, and for missing rights."""
_NO_BUCKET = "NoSuchBucket"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


_SECRET = re.compile(
    r"://[^/?#\s@:]*:[^/?#\s@]+@|[?&;](sig|password|passwd|pwd|secret|token|access_?key)="
    r"|-D\S*(password|passwd|pwd|secret|token)\S*=|-D(\S*[._-])?pw=",
    re.IGNORECASE,
)


ESCAPED = re.compile("%[0-9a-fA-F]{2}")
"""A character that delta-rs reads as another one, in a local path, too."""


def has_secret(text: str) -> bool:
    """Return whether a text has an address with a password, or an option that is a secret."""
    return _SECRET.search(text) is not None


def is_url(path: str) -> bool:
    """Return whether a location is a URL, of an object store for example, and not a path."""
    return "://" in path


def in_arrows_reach(location: str) -> bool:
    """Return whether Arrow's own clients can write there: a path, or a URL of Amazon S3's protocol."""
    return not is_url(location) or location.partition("://")[0].lower() in _S3


def file_system(location: str) -> tuple[Any, str]:
    """Return the file system of a path or URL, as fsspec has them, and the path in it.

    Amazon S3, and what speaks its protocol, is reached by Arrow's own client, with the variables that delta-rs reads:
    ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``AWS_REGION`` and ``AWS_ENDPOINT_URL``. It
    keeps no listing of a folder. Other URLs take what fsspec has for their scheme, which must be installed.

    Raises
    ------
    ConfigError
        If Python cannot read such URLs: a package is missing, or nothing knows their scheme.
    """
    scheme, _, rest = location.partition("://")
    if is_url(location) and scheme.lower() in _S3:
        endpoint = _endpoint()
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
        # as Hadoop and delta-rs have it: Arrow refuses an empty part of a name
        return _s3(endpoint, region, os.getpid()), "/".join(filter(None, rest.split("/")))
    return opened_url(location)


def opened_url(location: str) -> tuple[Any, str]:
    """Return what fsspec has for a path or URL: :func:`file_system`, but for S3, which is s3fs' here.

    Raises
    ------
    ConfigError
        If Python cannot read such URLs.
    """
    import fsspec

    if not is_url(location):
        fs, path = fsspec.core.url_to_fs(location)
        return fs, str(path)
    try:
        try:
            # other processes write there, and what they wrote would not be in a listing that is kept
            fs, path = fsspec.core.url_to_fs(location, use_listings_cache=False)
        except TypeError:  # hdfs-native, which keeps none, takes no such option
            fs, path = fsspec.core.url_to_fs(location)
    except (ImportError, ValueError, OSError) as error:  # OSError: Arrow's hdfs needs libraries of Hadoop
        raise ConfigError(
            f"{location.partition('://')[0]}:// URLs cannot be read here: {str(error).partition(chr(10))[0]}",
            state="nothing was read or written",
            next_step="install what fsspec needs for them (s3fs for s3://, gcsfs for gs://, adlfs for abfss://, "
            "hdfs-native for hdfs://) where runs start and on Spark's workers, or name a path, or an s3a:// URL",
        ) from error
    return fs, str(path)


@lru_cache(maxsize=8)
def _s3(endpoint: str, region: str, _process: int) -> Any:
    """Return the file system of one endpoint. A forked process needs a client of its own: the threads are not there."""
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import FileSelector, FileType, S3FileSystem

    class Objects(ArrowFSWrapper):  # type: ignore[misc]
        """Arrow's client as a file system of fsspec."""

        cachable = False

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path

        def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False,
                 **_: Any) -> Any:  # fmt: skip
            """Find what is below a folder, as fsspec does, but in one listing, and never less of it after an error."""
            selector = FileSelector(path, recursive=maxdepth != 1, allow_not_found=True)
            infos = self.fs.get_file_info(selector) or self.fs.get_file_info([path])
            wanted = {FileType.File, FileType.Directory} if withdirs else {FileType.File}
            deepest = None if maxdepth is None else path.rstrip("/").count("/") + maxdepth
            found = {
                info.path: self._make_entry(info) for info in sorted(infos, key=lambda info: str(info.path))
                if info.type in wanted and (deepest is None or info.path.count("/") <= deepest)
            }  # fmt: skip
            return found if detail else list(found)

        def isdir(self, path: str) -> bool:
            """Return whether it is a folder; fsspec says no after an error, too."""
            try:
                return bool(self.info(path)["type"] == "directory")
            except FileNotFoundError:
                return False

        def rmdir(self, path: str) -> None:
            """Do nothing. Arrow would remove what is in it; of a folder that is empty there is at most a marker."""

    url = urlsplit(endpoint)
    return Objects(
        S3FileSystem(
            endpoint_override=url.netloc or None, scheme=url.scheme if url.netloc else None, region=region or None
        )
    )


def _endpoint() -> str:
    """Return the address of the object store; empty for Amazon's.

    Raises
    ------
    ConfigError
        If Arrow and delta-rs would understand different ones.
    """
    given = {name: os.environ.get(name, "").rstrip("/") for name in _ENDPOINTS}
    found = sorted(set(filter(None, given.values())))
    url = urlsplit(found[0] if found else "")
    if len(found) < 2 and (not found or (url.scheme in ("http", "https") and url.netloc and not url.path)):
        return "".join(found)
    raise ConfigError(
        f"the address of the object store is not clear: {', '.join(n for n, value in given.items() if value)}",
        state="nothing was read or written",
        next_step="set AWS_ENDPOINT_URL alone, to http:// or https:// with a host, a port if it needs one, and no path",
    )


def told_by_store(
    error: BaseException,
    location: str,
    state: str = "nothing of this batch was committed; what was committed before stays",
) -> SluiceError | None:
    """Return the error for what an object store answers to its clients; None for any other failure."""
    text = str(error)
    code = next((code for code in (*DENIALS, _NO_BUCKET) if code in text), None)
    if code is None or not is_url(location):
        return None
    bucket = location.partition("://")[2].partition("/")[0]
    if code == _NO_BUCKET:
        return SinkError(
            f"there is no bucket {bucket!r} for {location}: the object store says {code}",
            state=state,
            next_step="create it, or correct the URL or AWS_ENDPOINT_URL; then run again",
        )
    return AuthorizationError(
        f"the object store refuses access to {location}: {code}",
        state=state,
        next_step="correct AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN (a token expires), or give "
        f"this key the right to list, read, write and delete in bucket {bucket!r}; then run again",
    )


def make_folder(location: str) -> None:
    """Make a folder, and those that it is in; an object store has none, and needs none.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    if (path := _local(location)) is not None:
        os.makedirs(path, exist_ok=True)


def remove(*folders: str) -> None:
    """Remove folders with all that is in them, as far as that can be done."""
    for folder in folders:
        if (path := _local(folder)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            continue
        with suppress(OSError, ValueError, ConfigError):  # Arrow's errors are of the second kind, too
            fs, path = file_system(folder)
            fs.rm(path, recursive=True)


def _local(location: str) -> str | None:
    """Return the path of a location in this machine's file system; None if it is elsewhere."""
    scheme, _, rest = location.partition(":")
    if scheme.lower() in ("file", "local"):
        return file_system(f"{scheme.lower()}:{rest}")[1]
    return None if is_url(location) else location
