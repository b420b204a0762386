"""A study's federation on Flower: what crosses the wire, the nodes, the server, and how a study gets there."""
