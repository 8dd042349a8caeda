"""What a runtime is to the rest of the worker, and to whoever writes one."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from partita.core.errors import InvalidInput
from partita.core.tensors import Signature, TensorSpec
from partita.worker.gpus.interface import GpuDevice

Batch = dict[str, NDArray[Any]]
"""Arrays by tensor name: (rows, *item shape) of a batched model, else the item itself.

Inputs are read-only.
"""

SendPart = Callable[[int, bytes], None]
"""Takes the number of an item of the execution at hand, and a part of its answer, ahead of the rest."""

_CLASS = re.compile(r":\w+$")

Option = str | int | float | bool
T = TypeVar("T", str, int, float, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """What to load and what it may use. `path` is a file, or ``FILE.py:Class`` for user code."""

    path: str
    model: str = "model"
    threads: int = 1
    owns_cores: bool = True
    """Whether nobody else computes on the cores, so that waiting threads may spin."""
    max_batch: int = 1
    options: Mapping[str, Option] = field(default_factory=dict)
    inputs: tuple[TensorSpec, ...] | None = None
    """The inputs, where the model itself does not say them."""
    device: str = "cpu"
    gpu: GpuDevice | None = None
    """The GPU to load onto; None = the cores."""

    @property
    def file(self) -> Path:
        """The model's file, absolute, without a class's name."""
        return Path(_CLASS.sub("", self.path)).resolve()

    def option(self, name: str, default: T) -> T:
        """Return one setting, of the type of its default; raises `InvalidInput` for another type."""
        value = self.options.get(name, default)
        if not isinstance(value, type(default)) or type(value) is not type(default):
            raise InvalidInput(f"option {name} = {value!r} must be a {type(default).__name__}")
        return value

    def check_options(self, *known: str) -> None:
        """Raise `InvalidInput` if a setting is none of these."""
        for name in self.options:
            if name not in known:
                raise InvalidInput(f"unknown option {name!r}; there are {', '.join(known) or 'none'}")


class Runtime(Protocol):
    """A loaded network. Made by a `Loader`, used by one thread."""

    @property
    def signature(self) -> Signature:
        """Inputs and outputs; no outputs = found out at warm-up."""
        ...

    @property
    def version(self) -> str:
        """Version of what executes, as a profile records it."""
        ...

    @property
    def threads_seen(self) -> int | None:
        """The thread count as the library itself states it; None where it cannot be asked."""
        ...

    def infer(self, batch: Batch) -> Batch:
        """Execute once, with exactly `Signature.fixed_batch` rows if that is set.

        Raises whatever the library raises; a failed execution leaves the network usable.
        """
        ...


Loader = Callable[[LoadRequest], Runtime]
"""Loads a network; raises `InvalidInput` or `LoadFailed`."""
