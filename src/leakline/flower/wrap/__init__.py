"""leakline's defences around somebody's own Flower app."""
