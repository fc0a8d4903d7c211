"""The jars of the lock file: fetched once, verified, and passed on as files. No Maven, no Ivy."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from sluice.errors import ConfigError, SluiceError
from sluice.home import Home
from sluice.shipped import CHECKOUT, base, shipped

if TYPE_CHECKING:
    import httpx

__all__ = ["DEFAULT_REPOSITORY", "LOCK_FILE", "Jar", "exclusive", "fetch", "folder_of", "locked", "paths"]

LOCK_FILE = shipped("include/jars.lock")
DEFAULT_REPOSITORY = "https://repo1.maven.org/maven2"

_STAMPS = ".verified.json"
_PARALLEL = 8
_ATTEMPTS = 4

Report = Callable[[str], None]


@dataclass(frozen=True)
class Jar:
    """An entry of the lock file: Maven coordinate and sha256."""

    coordinate: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The file name in a repository and in a set's folder."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"

    @property
    def remote(self) -> str:
        """The path below a Maven repository."""
        group, artifact, version = self.coordinate.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{self.file_name}"


def locked(set_name: str, lock_file: Path | None = None) -> list[Jar]:
    """Return a set of the lock file, in its order.

    Raises
    ------
    ConfigError
        If there is no such set.
    """
    sets = json.loads((lock_file or LOCK_FILE).read_text(encoding="utf-8"))["sets"]
    if set_name not in sets:
        raise ConfigError(f"no set of jars is called {set_name!r}", next_step=f"choose one of: {', '.join(sets)}")
    return [Jar(entry["jar"], entry["sha256"]) for entry in sets[set_name]]


def folder_of(set_name: str) -> Path:
    """Return the folder of a set's files; all homes of a user share it.

    It is in ``SLUICE_JARS``, or in ``$XDG_CACHE_HOME/sluice/jars`` (``~/.cache/sluice/jars``). Earlier versions fetched
    jars into each home; a set that is in this home, or in the checkout's ``var``, is used from there.

    Raises
    ------
    ConfigError
        If the user has no home directory for a cache.
    """
    named = os.environ.get("SLUICE_JARS")
    if named:
        return base() / named / set_name
    earlier = [Path(Home.from_env().root), *([CHECKOUT / "var"] if CHECKOUT else [])]
    found = [root / "jars" / set_name for root in earlier if (root / "jars" / set_name).is_dir()]
    return found[0] if found else _cache() / "sluice" / "jars" / set_name


def _cache() -> Path:
    named = Path(os.environ.get("XDG_CACHE_HOME") or "")
    try:
        return named if named.is_absolute() else Path.home() / ".cache"  # XDG says to ignore a relative path
    except RuntimeError:
        raise ConfigError(
            "there is no folder for the jars: this user has no home directory",
            state="nothing was read or written",
            next_step="set SLUICE_JARS to a folder for them",
        ) from None


def paths(set_name: str, dest: Path | None = None) -> list[Path]:
    """Return the files of a set, in the lock's order, without using the network.

    Raises
    ------
    ConfigError
        If a file is missing, or its sha256 is not the lock's.
    """
    folder = dest or folder_of(set_name)
    jars = locked(set_name)
    stamps = _read_stamps(folder)
    bad = [jar.file_name for jar in jars if not _is_good(folder / jar.file_name, jar, stamps)]
    if bad:
        raise ConfigError(
            f"{len(bad)} of the {len(jars)} {set_name} jars are absent from {folder} or damaged: {', '.join(bad[:3])}"
            + (", ..." if len(bad) > 3 else ""),
            state="nothing was started",
            next_step=f"python -m sluice.launch.jars {set_name}",
        )
    return [folder / jar.file_name for jar in jars]


def fetch(set_name: str, dest: Path | None = None, *, report: Report | None = None) -> list[Path]:
    """Download a set of jars to ``dest``, if needed, and return its files, in the lock's order.

    The second call costs one ``stat`` per file. A file is trusted only if its sha256 is the lock's, or if size and
    modification time are those recorded at such a check. An interrupted download is resumed. A file appears under its
    name only when it is complete. If two processes fetch the same set, one waits for the other.

    Parameters
    ----------
    set_name
        A set of the lock file: ``spark`` or ``kafka``.
    dest
        Folder to fill; default :func:`folder_of`.
    report
        Called with a line for each downloaded file.

    Raises
    ------
    ConfigError
        If an artifact cannot be downloaded from ``SLUICE_MAVEN_REPO``, or the folder cannot be written.
    """
    folder = dest or folder_of(set_name)
    jars = locked(set_name)
    files = [folder / jar.file_name for jar in jars]
    stamps = _read_stamps(folder)
    if all(_is_stamped(file, jar, stamps) for file, jar in zip(files, jars, strict=True)):
        return files
    _open_for_writing(folder)
    with exclusive(folder / ".lock"):
        stamps = _read_stamps(folder)
        missing = [jar for jar, file in zip(jars, files, strict=True) if not _is_good(file, jar, stamps)]
        try:
            _download(missing, folder, report or (lambda line: None))
        finally:
            _write_stamps(folder, jars)
    return files


def _open_for_writing(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").open("w").close()
    except OSError as error:
        raise ConfigError(
            f"jars cannot be fetched into {folder}: {error.strerror}",
            state="nothing was fetched",
            next_step="make it writable, or set SLUICE_JARS to another folder",
        ) from error


def _download(jars: list[Jar], folder: Path, report: Report) -> None:
    if not jars:
        return
    import httpx  # takes a tenth of a second, which the second call saves

    repository = (os.environ.get("SLUICE_MAVEN_REPO") or DEFAULT_REPOSITORY).rstrip("/")
    with (
        httpx.Client(timeout=httpx.Timeout(30, pool=None), follow_redirects=True) as client,
        ThreadPoolExecutor(_PARALLEL) as pool,
    ):
        futures = {pool.submit(_download_one, client, repository, jar, folder): jar for jar in jars}
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                size = future.result()
                report(f"{done}/{len(jars)} {futures[future].file_name} ({size / 1e6:.1f} MB)")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _download_one(client: httpx.Client, repository: str, jar: Jar, folder: Path) -> int:
    """Download and verify one jar, then rename it into place; return its size in bytes."""
    import httpx
    import tenacity

    part = folder / f"{jar.file_name}.part"
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((httpx.TransportError, _TryAgainError)),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=tenacity.wait_exponential(multiplier=0.2, max=5),
        reraise=True,
    )
    try:
        attempts(_transfer, client, f"{repository}/{jar.remote}", part, jar.sha256)
    except (httpx.HTTPError, httpx.InvalidURL, _TryAgainError) as error:
        _cannot_have(jar, repository, error)
    size = part.stat().st_size
    part.replace(folder / jar.file_name)
    return size


class _TryAgainError(Exception):
    """The answer was unusable; another attempt may succeed."""


def _transfer(client: httpx.Client, url: str, part: Path, sha256: str) -> None:
    """Complete ``part`` from ``url``; if the transfer breaks, keep the part that was received."""
    have = part.stat().st_size if part.exists() else 0
    # Left by a transfer that ended just before the rename: a request for more would be answered by 416.
    if have and _sha256(part) == sha256:
        return
    # The checksum is that of the stored file: no content encoding.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code in {408, 416, 429} or response.status_code >= 500:
            if response.status_code == 416:
                part.unlink(missing_ok=True)
            raise _TryAgainError(f"HTTP {response.status_code}")
        response.raise_for_status()
        resumes = response.status_code == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if response.status_code == 206 and not resumes:
            part.unlink(missing_ok=True)
            raise _TryAgainError("the answer has another range than the requested one")
        with part.open("ab" if resumes else "wb") as file:
            for chunk in response.iter_raw():  # unbuffered: a buffered chunk would be lost if the transfer breaks
                file.write(chunk)
    found = _sha256(part)
    if found != sha256:
        part.unlink()
        raise _TryAgainError(f"its sha256 is {found}, the lock file says {sha256}")


def _cannot_have(jar: Jar, repository: str, error: Exception) -> NoReturn:
    import httpx

    reason = str(error) or type(error).__name__
    if isinstance(error, httpx.HTTPStatusError):
        reason = f"HTTP {error.response.status_code} for {jar.remote}"
    with contextlib.suppress(httpx.InvalidURL):
        # A private repository's URL may contain a password, and this text is logged.
        repository = str(httpx.URL(repository).copy_with(username=None, password=None))
    raise ConfigError(
        f"cannot download {jar.coordinate} from {repository}: {reason}",
        state="complete jars are kept, and a partial download will be resumed",
        next_step="check the network, or name another Maven repository in SLUICE_MAVEN_REPO, and run it again",
    ) from error


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


_Stamps = dict[str, list[str | int]]


def _read_stamps(folder: Path) -> _Stamps:
    try:
        stamps = json.loads((folder / _STAMPS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamps if isinstance(stamps, dict) else {}


def _write_stamps(folder: Path, jars: list[Jar]) -> None:
    """Record stamps of the complete files; files without a stamp are hashed, whoever put them there."""
    old = _read_stamps(folder)
    ours = {jar.file_name for jar in jars}
    new = {name: stamp for name, stamp in old.items() if name not in ours}  # of another version in the same cache
    for jar in jars:
        file = folder / jar.file_name
        before = _stamp(file, jar)
        # The stamp is taken before the hash: a file changed in between then fails the next comparison.
        if before and _is_good(file, jar, old):
            new[jar.file_name] = before
    temporary = folder / f"{_STAMPS}.{os.getpid()}"
    temporary.write_text(json.dumps(new), encoding="utf-8")
    temporary.replace(folder / _STAMPS)


def _stamp(file: Path, jar: Jar) -> list[str | int] | None:
    try:
        stat = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return [jar.sha256, stat.st_size, stat.st_mtime_ns]


def _is_stamped(file: Path, jar: Jar, stamps: _Stamps) -> bool:
    stamp = _stamp(file, jar)
    return stamp is not None and stamps.get(file.name) == stamp


def _is_good(file: Path, jar: Jar, stamps: _Stamps) -> bool:
    return _is_stamped(file, jar, stamps) or (file.is_file() and _sha256(file) == jar.sha256)


@contextlib.contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold a lock file, exclusive among threads and processes; it is released when this process ends."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(argv: list[str] | None = None) -> int:
    """Fetch the named sets, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m sluice.launch.jars", description=__doc__)
    parser.add_argument("sets", nargs="*", metavar="spark|kafka", help="default: both")
    chosen = parser.parse_args(argv).sets or ["spark", "kafka"]
    try:
        for name in chosen:
            files = fetch(name, report=lambda line, name=name: _say(f"{name} {line}"))  # type: ignore[misc]
            _say(f"{name}: {len(files)} jars in {files[0].parent}")
    except SluiceError as error:
        _say(str(error))
        return int(error.exit_code)
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
