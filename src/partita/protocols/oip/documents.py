"""The JSON documents of an inference request, as the protocol defines them."""

from typing import Annotated, Any

import msgspec

from partita.core.errors import InvalidRequest

MAX_TIMEOUT_US = 1 << 53


class InputParameters(msgspec.Struct, frozen=True):
    """Parameters of one input; unknown ones are ignored, as the protocol asks."""

    binary_data_size: int | None = None


class OutputParameters(msgspec.Struct, frozen=True):
    """Parameters of one requested output."""

    binary_data: bool | None = None
    classification: Annotated[int, msgspec.Meta(ge=0)] | None = None


class InputTensor(msgspec.Struct, frozen=True):
    """One input of a request."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: InputParameters = InputParameters()
    data: list[Any] | None = None


class RequestedOutput(msgspec.Struct, frozen=True):
    """One output that the client asks for."""

    name: str
    parameters: OutputParameters = OutputParameters()


class RequestParameters(msgspec.Struct, frozen=True):
    """Parameters of a request."""

    binary_data_output: bool = False
    timeout: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMEOUT_US)] | None = None
    """Microseconds; 0 = none."""
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False


class InferRequest(msgspec.Struct, frozen=True):
    """An inference request, or the JSON part of one with binary tensors."""

    inputs: tuple[InputTensor, ...]
    id: str = ""
    parameters: RequestParameters = RequestParameters()
    outputs: tuple[RequestedOutput, ...] = ()


_decoder = msgspec.json.Decoder(InferRequest)


def parse_infer_request(text: bytes) -> InferRequest:
    """Parse the JSON; raises `InvalidRequest` saying where it is wrong."""
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the request's JSON is not an inference request: {error}") from None
    except RecursionError:
        raise InvalidRequest("the request's JSON is nested too deep") from None
