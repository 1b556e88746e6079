"""Codecs by themselves: what they lose, what they cost, how long they take."""
