"""Paper 004: intermediaries."""
