"""Images that attacks rebuilt."""
