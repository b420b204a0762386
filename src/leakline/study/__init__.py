"""Studies: the grid of federations and attacks, the lab that runs it, the store that keeps it."""

from leakline.study.cells import Cell, Study, grid
from leakline.study.spec import load, parse

__all__ = ["Cell", "Study", "grid", "load", "parse"]
