"""A kind of decoder, as the core knows it: its keys in the pipeline file, and where its Spark half is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.fields import Strict
from sluice.kinds import imported

__all__ = ["DecoderKind"]


@dataclass(frozen=True)
class DecoderKind:
    """A kind of decoder, selected by a key below ``decode`` of a pipeline file.

    Parameters
    ----------
    config
        The model of that key.
    decoder
        ``package.module:callable``, which takes the config and returns a ``sluice_spark.decoders.base.Decoder``.
    """

    config: type[Strict]
    decoder: str

    def made(self, config: Any) -> Any:
        """Return the decoder."""
        return imported(self.decoder)(config)
