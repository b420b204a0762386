"""What a store holds, read once: `Results` of cells with their readings, pooled over seeds into settings."""

from leakline.results.cell import Cell
from leakline.results.estimate import Estimate
from leakline.results.results import Results
from leakline.results.settings import Setting
from leakline.results.stored import read

__all__ = ["Cell", "Estimate", "Results", "Setting", "read"]
