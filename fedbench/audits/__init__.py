"""Empirical lower bounds on epsilon, of mechanisms and of whole runs."""
