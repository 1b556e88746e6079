"""Attacks and rules in processes of their own, which hold nothing but what they are shown."""
