"""What a store holds, read once: cells with their readings, pooled over seeds."""
