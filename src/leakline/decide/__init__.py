"""Decisions over results: limits, which defences keep them, two settings side by side."""
