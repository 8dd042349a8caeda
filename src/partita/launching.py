"""What a worker needs to know of a model, from its source."""

from partita.core.errors import InvalidInput
from partita.core.process_settings import ProcessSettings
from partita.core.tensors import DataType, TensorSpec
from partita.engine.instance import ModelLaunch
from partita.settings import InputSettings
from partita.sources import ModelSource
from partita.system.allocators import allocator_environment


def launch_of(source: ModelSource) -> ModelLaunch:
    """Return what a worker needs to know of a model.

    Raises `InvalidInput` for a wrong ``inputs`` setting, and for an ensemble, which is no one model.
    """
    if source.ensemble is not None:
        raise InvalidInput(
            f"{source.path} is an ensemble, which is allocated and not profiled: "
            f"partita allocate {source.path.name}"
        )
    settings = source.settings
    return ModelLaunch(
        name=source.name,
        path=source.load_path,
        runtime=source.runtime,
        handler=source.load_handler,
        options=dict(settings.options),
        inputs=_inputs(settings.inputs, source.name),
        dimensions=dict(settings.dimensions),
        load_limit_s=settings.load_limit_s,
        max_output_bytes=settings.max_output_bytes,
        process=_process(settings.process, source.name),
    )


def _process(process: ProcessSettings, model: str) -> ProcessSettings:
    """Return the settings if a process can be started so here; raises `InvalidInput`."""
    try:
        allocator_environment(process)
    except InvalidInput as error:
        raise InvalidInput(f"[model.{model}] {error}") from None
    return process


def _inputs(inputs: dict[str, InputSettings], model: str) -> tuple[TensorSpec, ...] | None:
    if not inputs:
        return None
    specs = []
    for name, given in inputs.items():
        try:
            datatype = DataType(given.datatype)
        except ValueError:
            known = ", ".join(DataType)
            raise InvalidInput(
                f"[model.{model}] inputs.{name}: unknown datatype {given.datatype!r}; one of {known}"
            ) from None
        specs.append(TensorSpec(name, datatype, tuple(given.shape[1:])))
    return tuple(specs)
