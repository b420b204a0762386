"""Paper 002: lower bounds of LDP-SGD."""
