"""Recorded rounds of any engine: their format, how they are read, checked and attacked."""

from __future__ import annotations

from pathlib import Path


def is_recording(directory: Path) -> bool:
    """Whether a directory is a recording (and not a study's results); asked before anything heavy is imported."""
    return (directory / "recording.json").is_file()
