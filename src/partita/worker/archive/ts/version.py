"""The version of TorchServe's interfaces that these are."""

from partita.wire.archive_call import VERSION

__version__ = VERSION
