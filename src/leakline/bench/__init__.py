"""Training on one machine: the plan, one client's training, vectorised groups, local optimisers, memory."""
