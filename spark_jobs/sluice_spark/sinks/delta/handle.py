"""A Delta table by its path: its newest version, its history, and errors that name it."""

from __future__ import annotations

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from sluice.delta.commits import Commit
from sluice.errors import ConfigError, SinkError, SluiceError, described
from sluice.storage import told_by_store
from sluice_spark.sinks.delta.open_tables import OpenTables

__all__ = ["ATTEMPTS", "UNWRITABLE", "Handle"]

ATTEMPTS = 100
"""Maximum number of attempts at a commit while others commit."""

UNWRITABLE = frozenset(
    (
        "allowColumnDefaults", "clustering", "domainMetadata", "icebergCompatV1", "icebergCompatV2", "identityColumns",
        "inCommitTimestamp", "rowTracking", "typeWidening", "vacuumProtocolCheck",
    )
)  # fmt: skip
"""Features of tables to which delta-rs commits nothing, as far as they are known; of others, it says so itself."""

_UNSUPPORTED = "Unsupported table features required"
"""How delta-rs begins to say so."""

_OPEN = OpenTables()


class Handle:
    """A Delta table by path or URL; it need not exist."""

    def __init__(self, path: str) -> None:
        self.path = path

    def table(self) -> DeltaTable | None:
        """Return the newest version of the table, for exclusive use; None before the first commit.

        Raises
        ------
        SinkError, AuthorizationError
            If it cannot be read.
        """
        try:
            return _OPEN.look(self.path)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise self.failed(error) from error

    def table_version(self) -> int:
        """Return the newest version of the table; -1 if there is no table."""
        table = self.table()
        return -1 if table is None else int(table.version())

    def existing(self) -> DeltaTable:
        """Return the newest version of a table that must exist.

        Raises
        ------
        SinkError
            If it does not exist, or cannot be read.
        """
        table = self.table()
        if table is None:
            raise SinkError(
                f"there is no table at {self.path}",
                state="nothing was changed",
                next_step="restore the table, or fix sink.delta.path in the pipeline file",
            )
        return table

    def history(self, table: DeltaTable, newest: int | None = None) -> list[Commit]:
        """Return the commits of an open table, newest first: all, or only the ``newest`` ones."""
        try:
            return [Commit.of(entry) for entry in table.history(newest)]
        except (DeltaError, OSError, ValueError) as error:
            raise self.failed(error) from error

    def try_again(self, error: CommitFailedError) -> None:
        """Return if a commit that failed may succeed at the next attempt: others may have committed meanwhile.

        Raises
        ------
        ConfigError
            If no attempt can, because the table has features that delta-rs cannot write.
        """
        if str(error).startswith(_UNSUPPORTED):
            raise self.unwritable(str(error).partition(":")[2].strip(" []"))

    def unwritable(self, features: str) -> ConfigError:
        """Return the error of a table with these features, which delta-rs cannot write."""
        return ConfigError(
            f"the table {self.path} has features that delta-rs cannot write: {features}",
            state="nothing was committed to it; the position stays where it was",
            next_step=f"where Spark can drop them: ALTER TABLE delta.`{self.path}` DROP FEATURE name; or give the "
            "pipeline another path, and copy the rows to this table from there",
        )

    def crowded(self) -> SluiceError:
        """Return the error of a commit that failed in all attempts because others committed."""
        return self.failed(OSError(f"others committed to it {ATTEMPTS} times while this commit was being prepared"))

    def failed(self, error: Exception) -> SluiceError:
        """Return the error for a table that could not be read or written."""
        return told_by_store(error, self.path) or SinkError(
            f"the table {self.path} failed: {described(error)}",
            state="the batch is in the table as a whole or not at all; the next run finds out which",
            next_step="fix the storage, then run again",
        )
