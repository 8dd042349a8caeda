"""How a handler sends parts of an answer."""
