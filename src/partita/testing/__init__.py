"""Conformance suites for those who extend Partita."""
