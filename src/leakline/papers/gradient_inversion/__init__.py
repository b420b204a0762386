"""Paper 001: gradient inversion."""
