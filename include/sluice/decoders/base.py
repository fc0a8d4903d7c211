"""What the core knows of a decoder: its keys in the pipeline file, and where its Spark half is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.fields import Strict
from sluice.kinds import imported

__all__ = ["DecoderKind"]


@dataclass(frozen=True)
class DecoderKind:
    """A kind of decoder: what the key below ``decode`` of a pipeline file stands for.

    Parameters
    ----------
    config
        Reads what the file says.
    decoder
        ``package.module:callable``: given the config it returns a ``sluice_spark.decoders.base.Decoder``.
    """

    config: type[Strict]
    decoder: str

    def made(self, config: Any) -> Any:
        """Return the decoder."""
        return imported(self.decoder)(config)
