"""Protocols outside the harness: a server and clients that hold only their own, and apps of them.

`server` and `client` speak bytes and know no framework; `flower` carries the bytes through Flower.
"""
