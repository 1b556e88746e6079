"""Conformance of other projects' rules: properties, and agreement with the rule of a paper."""
