"""Measurements behind the figures that the documentation quotes; run with `make bench`."""
