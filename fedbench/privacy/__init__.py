"""Differential privacy of a run: bounds on epsilon, with their proofs; natural logarithms."""
