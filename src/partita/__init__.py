"""Partita: a self-tuning inference server."""
