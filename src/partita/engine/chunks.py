"""From a batch to the message that tells a worker where its items lie in X."""

from partita.engine.request import Request
from partita.machines.work import Batch
from partita.wire.messages import Chunk, Execute


def execute_message(batch: Batch, slot: int) -> Execute:
    """Return the `Execute` for a batch, neighbouring rows merged into one chunk."""
    layout = batch.pieces[0][0].owner.layout
    if layout.is_ragged:
        return _ragged(batch, slot)
    chunks: list[Chunk] = []
    extent = None
    begin = end = 0
    for job, first, count in batch.pieces:
        request: Request = job.owner
        row = request.first_row + first
        if request.extent is extent and row == end:
            end = row + count
            continue
        if extent is not None:
            chunks.append(_chunk(extent.starts, layout.row_bytes, begin, end))
        extent, begin, end = request.extent, row, row + count
    assert extent is not None
    chunks.append(_chunk(extent.starts, layout.row_bytes, begin, end))
    return Execute(batch.batch_id, slot, tuple(chunks), layout.shapes, None, batch.executions)


def _chunk(starts: tuple[int, ...], row_bytes: tuple[int, ...], begin: int, end: int) -> Chunk:
    if len(starts) == 1:
        return Chunk(end - begin, (starts[0] + begin * row_bytes[0],))
    return Chunk(end - begin, tuple(s + begin * r for s, r in zip(starts, row_bytes, strict=True)))


def _ragged(batch: Batch, slot: int) -> Execute:
    chunks: list[Chunk] = []
    sizes: list[tuple[int, ...]] = []
    for job, first, count in batch.pieces:
        spans = job.owner.item_spans
        for offsets, lengths in spans[first : first + count]:
            chunks.append(Chunk(1, offsets))
            sizes.append(lengths)
    shapes = batch.pieces[0][0].owner.layout.shapes
    return Execute(batch.batch_id, slot, tuple(chunks), shapes, tuple(sizes), batch.executions)
