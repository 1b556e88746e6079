"""Probes of codecs, and of what an adversary gets out of what the server sees: no epsilon."""
