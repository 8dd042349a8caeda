"""What executes a network: one module per runtime, found by name through the registry."""
