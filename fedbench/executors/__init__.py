"""Ways to train the clients of a round: one by one, stacked, in processes."""
