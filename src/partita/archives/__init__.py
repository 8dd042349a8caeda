"""TorchServe's archives (``.mar``): reading them, unpacking them safely, and what they say of themselves."""
