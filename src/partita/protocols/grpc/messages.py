"""The protocol's messages as classes."""

from partita.protocols.grpc.pool import message_classes
from partita.protocols.grpc.schema import ENUMS, MESSAGES, PACKAGE

CLASSES = message_classes(PACKAGE, MESSAGES, ENUMS)
"""By name, such as ``ModelInferRequest`` or ``ModelInferRequest.InferInputTensor``."""
