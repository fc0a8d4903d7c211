"""The pipeline file: model, parser and errors."""

from sluice.pipeline.load import find, load, load_all, pipelines_folder
from sluice.pipeline.model import Pipeline
from sluice.pipeline.sections import Rows

__all__ = ["Pipeline", "Rows", "find", "load", "load_all", "pipelines_folder"]
