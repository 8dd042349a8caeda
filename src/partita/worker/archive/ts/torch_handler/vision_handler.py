"""What handlers of images share: pictures in, a batch of tensors out."""

import base64
import io
from abc import ABC
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image

from partita.worker.archive.ts.handler_utils.timer import timed
from partita.worker.archive.ts.torch_handler.base_handler import BaseHandler


class VisionHandler(BaseHandler, ABC):
    """A handler of images; `image_processing` makes a tensor of one picture."""

    image_processing: Callable[[Any], Any]

    def initialize(self, context: Any) -> None:
        """Load the network; let pictures be of any size where that was asked for."""
        super().initialize(context)
        if not context.system_properties.get("limit_max_image_pixels"):
            Image.MAX_IMAGE_PIXELS = None

    @timed
    def preprocess(self, data: Any) -> Any:
        """Return the pictures of a batch as one tensor: from files, from those in base64, or from lists."""
        images = []
        for row in data:
            image = row.get("data") or row.get("body")
            if isinstance(image, str):
                image = base64.b64decode(image)
            if isinstance(image, bytes | bytearray):
                image = self.image_processing(Image.open(io.BytesIO(image)))
            else:
                image = torch.tensor(image, dtype=torch.float32)
            images.append(image)
        return torch.stack(images).to(self.device)

    def get_insights(self, tensor_data: Any, _: Any, target: Any = 0) -> Any:
        """Return integrated gradients, by the package captum."""
        from captum.attr import IntegratedGradients

        return IntegratedGradients(self.model).attribute(tensor_data, target=target, n_steps=15).tolist()
