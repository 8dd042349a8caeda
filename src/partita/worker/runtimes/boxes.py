"""Weighted boxes fusion, the rule ``boxes``: members' detections of an image become one set of boxes.

Its inputs are the members' predictions by the members' names: of every item a list of rows
``x1, y1, x2, y2, score, label``; rows without a positive score are padding. The fusion itself is that of the
package ``ensemble-boxes`` (Solovyev et al., *Weighted boxes fusion*, 2021).
"""

from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
from ensemble_boxes import weighted_boxes_fusion
from numpy.typing import NDArray

from partita.core.errors import InferenceFailed, InvalidInput
from partita.core.tensors import DataType, Signature, TensorSpec
from partita.worker.runtimes.interface import Batch, LoadRequest

COLUMNS = 6
"""x1, y1, x2, y2, score, label."""
CONFIDENCES = ("avg", "max", "box_and_model_avg", "absent_model_aware_avg")
_BEYOND = 1.001
"""Coordinates above this cannot be shares of the image."""


def load(request: LoadRequest) -> "BoxesRule":
    """Return the rule; raises `InvalidInput` for an option, or for a member whose output holds no boxes."""
    request.check_options("confidence", "height", "iou", "labels", "most", "skip", "weights", "width")
    return BoxesRule(request)


class BoxesRule:
    """Fuses the boxes of each item by itself."""

    version = metadata.version("ensemble-boxes")
    threads_seen = None

    def __init__(self, request: LoadRequest) -> None:
        assert request.inputs is not None
        members = [spec.name for spec in request.inputs]
        for spec in request.inputs:
            if len(spec.shape) != 2 or spec.shape[1] not in (COLUMNS, -1):
                raise InvalidInput(
                    f"member {spec.name} answers {[-1, *spec.shape]}, and the rule boxes needs "
                    f"[-1, boxes, {COLUMNS}]: rows of x1, y1, x2, y2, score, label"
                )
        self._iou = request.option("iou", 0.55)
        self._skip = request.option("skip", 0.0)
        self._most = request.option("most", 100)
        self._confidence = str(request.option("confidence", CONFIDENCES[0]))
        if self._confidence not in CONFIDENCES:
            raise InvalidInput(f"confidence = {self._confidence!r} must be one of {', '.join(CONFIDENCES)}")
        width, height = request.option("width", 1), request.option("height", 1)
        self._scale = np.array([width, height, width, height], np.float64)
        self._weights = dict(zip(members, _numbers(request, "weights", members), strict=True))
        self._labels = _labels(request, members)
        outputs = (
            TensorSpec("detections", DataType.FP32, (self._most, COLUMNS)),
            TensorSpec("found", DataType.INT32, (1,)),
        )
        self.signature = Signature(inputs=request.inputs, outputs=outputs)

    def infer(self, batch: Batch) -> Batch:
        """Return `most` rows for every item, the surest first, padded with zeros, and how many are boxes."""
        n_items = len(next(iter(batch.values())))
        for member, rows in batch.items():
            if rows.ndim != 3 or rows.shape[2] != COLUMNS:
                raise InferenceFailed(
                    f"member {member} answered {list(rows.shape)}; the rule boxes needs "
                    f"[{n_items}, boxes, {COLUMNS}]"
                )
        detections = np.zeros((n_items, self._most, COLUMNS), np.float32)
        found = np.zeros((n_items, 1), np.int32)
        for item in range(n_items):
            fused = self._fused([(member, rows[item]) for member, rows in batch.items()])[: self._most]
            detections[item, : len(fused)] = fused
            found[item] = len(fused)
        return {"detections": detections, "found": found}

    def _fused(self, given: Sequence[tuple[str, NDArray[Any]]]) -> NDArray[Any]:
        """Fuse one item's rows; the result is in the same coordinates and (boxes, 6) float64."""
        known = [(member, self._rows(member, rows)) for member, rows in given]
        boxes, scores, labels = weighted_boxes_fusion(
            [rows[:, :4] for _, rows in known],
            [rows[:, 4] for _, rows in known],
            [rows[:, 5] for _, rows in known],
            weights=[self._weights[member] for member, _ in known],
            iou_thr=self._iou,
            skip_box_thr=self._skip,
            conf_type=self._confidence,
        )
        return np.column_stack([boxes * self._scale, scores, labels])

    def _rows(self, member: str, rows: NDArray[Any]) -> NDArray[Any]:
        """Return a member's boxes of one item: as shares of the image, with the ensemble's labels."""
        kept = rows[rows[:, 4] > 0].astype(np.float64)
        kept[:, :4] /= self._scale
        if not np.isfinite(kept).all():
            raise InferenceFailed(f"member {member} answered a box that is not finite")
        if kept.size and kept[:, :4].max() > _BEYOND:
            raise InferenceFailed(
                f"member {member} answered a box that ends at {kept[:, :4].max():.4g} of the image's size; "
                "where coordinates are pixels, give [boxes] size = [width, height]"
            )
        np.clip(kept[:, :4], 0.0, 1.0, out=kept[:, :4])
        corners = np.sort(kept[:, :4].reshape(-1, 2, 2), axis=1)  # the package does both, with a warning each
        kept[:, :4] = corners.reshape(-1, 4)
        kept = kept[(corners[:, 0] < corners[:, 1]).all(axis=1)]
        order = self._labels.get(member)
        if order is not None:
            index = kept[:, 5].astype(int)
            if index.size and not 0 <= index.min() <= index.max() < len(order):
                raise InferenceFailed(
                    f"member {member} answered label {index.max()}, and has {len(order)} classes"
                )
            kept[:, 5] = order[index]
        return kept


def _numbers(request: LoadRequest, name: str, members: Sequence[str]) -> list[float]:
    """Return an option that has a number for each member, 1 where it is not given."""
    given = str(request.option(name, ""))
    return [float(one) for one in given.split(",")] if given else [1.0] * len(members)


def _labels(request: LoadRequest, members: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the ensemble's label for each of a member's, where their orders differ."""
    given = str(request.option("labels", ""))
    if not given:
        return {}
    orders = [np.array([int(one) for one in text.split(",")]) for text in given.split(";")]
    return dict(zip(members, orders, strict=True))
