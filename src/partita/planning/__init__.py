"""Pure search: knapsack, threshold, micro-batches, placement, which points to profile."""
