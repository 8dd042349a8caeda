"""TorchServe's interfaces: its inference and its management API."""
