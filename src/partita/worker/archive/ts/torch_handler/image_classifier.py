"""The default handler ``image_classifier``: a picture in, its likeliest classes out."""

from typing import Any

import torch

from partita.worker.archive.ts.handler_utils.timer import timed
from partita.worker.archive.ts.torch_handler.pictures import CenterCrop, Normalize, Resize, Steps, to_tensor
from partita.worker.archive.ts.torch_handler.vision_handler import VisionHandler
from partita.worker.archive.ts.utils.util import map_class_to_label


class ImageClassifier(VisionHandler):
    """Answers the `topk` likeliest classes with their probabilities."""

    topk = 5
    image_processing = Steps(
        [
            Resize(256),
            CenterCrop(224),
            to_tensor,
            Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )

    def set_max_result_classes(self, topk: int) -> None:
        """Set how many classes are answered."""
        self.topk = topk

    def get_max_result_classes(self) -> int:
        """Return how many classes are answered."""
        return self.topk

    @timed
    def postprocess(self, data: Any) -> Any:
        """Return each picture's likeliest classes."""
        probabilities, classes = torch.topk(torch.softmax(data, dim=1), self.topk, dim=1)
        return map_class_to_label(probabilities.tolist(), self.mapping, classes.tolist())
