"""Envelopes: what is around the data in requests and answers."""
