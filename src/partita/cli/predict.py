"""``partita predict``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from partita.cli.console import emit_json, progress, say
from partita.cli.options import FILE, config_option, cores_option, json_option
from partita.cli.profiling import one_model
from partita.core.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray


@click.command(
    epilog="Example: partita predict model.onnx inputs.npy -o outputs.npy",
    short_help="Run a model over a file of inputs, offline.",
)
@click.argument("path", metavar="PATH", type=FILE)
@click.argument("inputs", metavar="INPUT.npy", type=FILE)
@click.option("-o", "--output", type=FILE, required=True, metavar="OUTPUT.npy", help="Where the outputs go.")
@click.option(
    "--segment",
    type=click.IntRange(min=1),
    metavar="N",
    help="Items handed in together. [default: as an ensemble's file says, else 128]",
)
@click.option(
    "--tune",
    type=click.Choice(["before", "never"]),
    help="Profile a model that has no profile? [default: before]",
)
@config_option
@cores_option
@json_option
def command(
    path: Path,
    inputs: Path,
    output: Path,
    segment: int | None,
    tune: str | None,
    config: Path | None,
    cores: str | None,
    as_json: bool,
) -> None:
    """Run the model at PATH on all items of INPUT and write its outputs.

    INPUT is an .npy array with the items on its first axis, or an .npz with one such array for each input by
    name. OUTPUT is an .npy for a model with one output, and an .npz with one array for each output by name.
    An .npy is mapped, on both sides, so that it may be larger than memory.
    """
    import time

    from partita.core.tensors import DataType
    from partita.embedded import Server
    from partita.offline import for_this_alone, predict_with, read_arrays
    from partita.settings import default_config, load_settings

    arrays = read_arrays(inputs)
    settings = load_settings(config or default_config())
    source = for_this_alone(one_model(path, settings))
    with Server([source], cores=cores, tune=tune, settings=settings) as server:
        specs = server.signature(source.name).outputs
        _check_output(output, [spec.name for spec in specs])
        is_mapped = output.suffix == ".npy" and specs[0].datatype is not DataType.BYTES
        started_s = time.perf_counter()
        with progress("predicting", None) as advance:
            outputs = predict_with(
                server,
                source.name,
                arrays,
                segment=segment,
                progress=lambda done, total: advance(done, total, f"{done} of {total} items"),
                output=output if is_mapped else None,
            )
        seconds = time.perf_counter() - started_s
    written = output if is_mapped else _write(output, outputs)
    items = len(next(iter(outputs.values())))
    if outputs.missing:
        say(f"warning: some segments were answered without {', '.join(outputs.missing)}")
    if as_json:
        shapes = {name: list(array.shape) for name, array in outputs.items()}
        document = {"output": str(written), "items": items, "seconds": seconds, "outputs": shapes}
        emit_json({**document, "missing_members": list(outputs.missing)})
    else:
        say(f"{items} items in {seconds:.2f} s ({items / seconds:.0f} items/s), written to {written}")


def _check_output(file: Path, names: list[str]) -> None:
    """Raise `InvalidInput` before the work is done if its result could not be written."""
    if file.suffix not in (".npy", ".npz"):
        raise InvalidInput(f"-o {file}: write to an .npy, or to an .npz for several outputs")
    if not file.absolute().parent.is_dir():
        raise InvalidInput(f"-o {file}: there is no folder {file.absolute().parent}")
    if len(names) > 1 and file.suffix == ".npy":
        raise InvalidInput(f"-o {file}: the model has several outputs ({', '.join(names)}); write to an .npz")


def _write(file: Path, outputs: "dict[str, NDArray[Any]]") -> Path:
    import numpy as np

    plain = {name: array.astype("S") if array.dtype == object else array for name, array in outputs.items()}
    if file.suffix == ".npz":
        np.savez(file, **plain)  # type: ignore[arg-type]
        return file
    np.save(file, next(iter(plain.values())))
    return file
