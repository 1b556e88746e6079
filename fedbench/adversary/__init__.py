"""The threat model, and what the adversary achieved."""
