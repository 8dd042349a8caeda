"""The default handler ``image_segmenter``: a picture in, each pixel's class and its probability out."""

from typing import Any

import torch

from partita.worker.archive.ts.handler_utils.timer import timed
from partita.worker.archive.ts.torch_handler.pictures import CenterCrop, Normalize, Resize, Steps, to_tensor
from partita.worker.archive.ts.torch_handler.vision_handler import VisionHandler


class ImageSegmenter(VisionHandler):
    """Answers lists of (class, probability), rows of pixels, for each picture."""

    image_processing = Steps(
        [
            Resize(256),
            CenterCrop(224),
            to_tensor,
            Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )

    @timed
    def postprocess(self, data: Any) -> Any:
        """Return (height, width, 2) of class and probability for each picture."""
        scores = torch.softmax(data["out"], dim=1)
        probability, best = scores.max(dim=1)
        return torch.stack([best.type(data["out"].dtype), probability], dim=3).tolist()
