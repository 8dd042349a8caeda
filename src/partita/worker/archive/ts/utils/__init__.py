"""Small things that handlers use."""
