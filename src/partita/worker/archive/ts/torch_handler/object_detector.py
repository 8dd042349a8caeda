"""The default handler ``object_detector``: a picture in, objects with their boxes out."""

from typing import Any

from partita.worker.archive.ts.handler_utils.timer import timed
from partita.worker.archive.ts.torch_handler.pictures import Steps, to_tensor
from partita.worker.archive.ts.torch_handler.vision_handler import VisionHandler
from partita.worker.archive.ts.utils.util import map_class_to_label


class ObjectDetector(VisionHandler):
    """Answers what is at least as sure as `threshold`."""

    image_processing = Steps([to_tensor])
    threshold = 0.5

    @timed
    def preprocess(self, data: Any) -> Any:
        """Return the pictures, which may differ in size, as a list of tensors."""
        return [super(ObjectDetector, self).preprocess([row])[0] for row in data]

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the network on a list of pictures."""
        import torch

        with torch.inference_mode():
            found = self.model(data, *args, **kwargs)
        return found[1] if isinstance(found, tuple) else found  # scripted detectors answer losses as well

    @timed
    def postprocess(self, data: Any) -> Any:
        """Return one list of objects for each picture: label → box, and the score."""
        answers = []
        for row in data:
            sure = row["scores"] >= self.threshold
            boxes, labels = row["boxes"][sure].tolist(), row["labels"][sure].tolist()
            named = map_class_to_label([[box] for box in boxes], self.mapping, [[label] for label in labels])
            scores = row["scores"][sure].tolist()
            answers.append([{**one, "score": score} for one, score in zip(named, scores, strict=True)])
        return answers
