"""What handlers import from TorchServe, by the same names."""

from partita.worker.archive.ts.version import __version__

__all__ = ["__version__"]
