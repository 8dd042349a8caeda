"""TorchServe's archives in a worker: their handlers, and the package ``ts`` that these import."""
