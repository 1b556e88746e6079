"""Mechanisms that protect the clients' data, one file each."""
