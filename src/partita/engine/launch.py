"""What a worker needs to know of its model, in the runtimes that plans may name."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from partita.core.devices import Device
from partita.core.plan import InstanceSpec
from partita.core.process_settings import ProcessSettings
from partita.core.tensors import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLaunch:
    """What a worker needs to know of its model; the same for all instances of a member."""

    name: str
    path: str
    runtime: str
    handler: str | None = None
    options: dict[str, str | int | float | bool] = field(default_factory=dict)
    inputs: tuple[TensorSpec, ...] | None = None
    dimensions: dict[str, int] = field(default_factory=dict)
    load_limit_s: float = 120.0
    max_output_bytes: int = 256 << 20
    """Most that the outputs of one item may have, in a batch on average."""
    process: ProcessSettings = field(default_factory=ProcessSettings)
    memory_at: tuple[int, ...] = ()
    """Batch sizes whose memory a worker is to say once it is ready."""
    gpus: tuple[Device, ...] = ()
    """The GPUs that instances of it may be on."""
    variants: "Mapping[str, ModelLaunch]" = field(default_factory=dict)
    """How it is launched in the other runtimes that plans name (`InstanceSpec.runtime`), by their names."""

    def variant(self, spec: InstanceSpec) -> "ModelLaunch":
        """Return how an instance is launched."""
        return self.variants.get(spec.runtime, self)

    def gpu(self, spec: InstanceSpec) -> Device | None:
        """Return the GPU that an instance is on; None on cores."""
        return next((gpu for gpu in self.gpus if gpu.name == spec.device), None)
