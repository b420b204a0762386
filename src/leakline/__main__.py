"""``python -m leakline``."""

from leakline.cli import main

main()
