"""Handwritten digits: trains the small classifiers that `partita demo` serves."""
