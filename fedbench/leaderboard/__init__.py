"""Entries that others can trust: rules, checks, scores, ranks, pages."""
