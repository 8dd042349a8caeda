"""Metrics of a handler's own."""
