"""Data sets, partitions and models."""
