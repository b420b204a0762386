"""The page: one HTML file in plain sentences, cards and tables."""
