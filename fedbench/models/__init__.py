"""Networks, and how they are called."""
