"""``python -m leakline.cli``."""

from leakline.cli import main

main()
