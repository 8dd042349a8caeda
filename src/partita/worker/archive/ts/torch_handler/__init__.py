"""Handlers to inherit from, and handlers that are whole."""
