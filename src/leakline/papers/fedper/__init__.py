"""Paper 003: personal layers, attribute and membership inference."""
