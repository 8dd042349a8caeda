"""The version of TorchServe's interfaces that these are."""

__version__ = "0.12.0"
