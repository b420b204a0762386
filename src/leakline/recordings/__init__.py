"""Recorded rounds of any engine: their format, how they are read, checked and attacked."""
