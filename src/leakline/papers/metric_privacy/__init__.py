"""Paper 000: metric privacy and client inference."""
