"""The core of the head: drives the machines with real IO."""
