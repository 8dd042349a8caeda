"""Measures L[t, b] and verifies plans by running them."""
