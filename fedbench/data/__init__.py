"""Data sets, partitions and splits."""
