"""What a handler is told of its model and of the requests at hand, and where it says how to answer."""

from collections.abc import Iterator, Mapping
from typing import Any

from partita.worker.archive.ts.metrics.metrics_store import MetricsStore


class Headers(dict[str, Any]):
    """Headers by name, in whatever case they are asked for."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self._exact = {key.lower(): key for key in given}

    def get(self, key: str, default: Any = None) -> Any:
        """Return a header's value."""
        found = self._exact.get(key.lower(), key)
        return super().get(found, default)


class RequestProcessor:
    """One request: its headers, and the status and headers of its response."""

    def __init__(self, request_header: Mapping[str, Any]) -> None:
        self._request_header = Headers(request_header)
        self._status_code: int = 200
        self._reason_phrase: str | None = None
        self._response_header: dict[str, str] = {}

    def get_request_property(self, key: str) -> Any:
        """Return a header of the request, None where it has none of that name."""
        return self._request_header.get(key)

    def get_request_properties(self) -> dict[str, Any]:
        """Return all headers of the request."""
        return self._request_header

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        """Set the response's status."""
        self._status_code = int(code)
        self._reason_phrase = reason_phrase

    def get_response_status_code(self) -> int:
        """Return the response's status."""
        return self._status_code

    def get_response_status_phrase(self) -> str | None:
        """Return the phrase beside the status."""
        return self._reason_phrase

    def add_response_property(self, key: str, value: str) -> None:
        """Set a header of the response."""
        self._response_header[str(key)] = str(value)

    def get_response_headers(self) -> dict[str, str]:
        """Return all headers of the response."""
        return self._response_header

    def get_response_header(self, key: str) -> str | None:
        """Return a header of the response."""
        return self._response_header.get(key)


class Context:
    """The model, and the requests of the batch at hand, by their position in it."""

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: dict[str, Any],
        batch_size: int,
        gpu: int | None,
        mms_version: str,
        limit_max_image_pixels: bool = True,
        metrics: Any = None,
        model_yaml_config: dict[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.model_yaml_config = model_yaml_config or {}
        self.request_ids: dict[int, str] = {}
        self.request_processor: list[RequestProcessor] = []
        self.metrics = metrics if metrics is not None else MetricsStore(self.request_ids, model_name)
        self.cl_socket = None
        self.stopping_criteria = None
        self.system_properties: dict[str, Any] = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }

    def get_request_id(self, idx: int = 0) -> str | None:
        """Return the name of one request."""
        return self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> Any:
        """Return a header of one request."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, Any]:
        """Return all headers of one request."""
        return self.request_processor[idx].get_request_properties()

    def get_sequence_id(self, idx: int) -> str:
        """Return the name of the sequence that a request belongs to; there are none here."""
        return str(self.get_request_header(idx, "ts_request_sequence_id") or "")

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the media type of one answer."""
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        """Return the media type that was set for one answer."""
        return self.get_response_headers(idx).get("content-type")

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        """Return status and phrase of one answer."""
        one = self.request_processor[idx]
        return one.get_response_status_code(), one.get_response_status_phrase()

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the status of one answer."""
        if not 0 <= idx < len(self.request_processor):
            raise IndexError(f"there is no request {idx} in this batch")
        self.request_processor[idx].report_status(code, phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set the status of every answer."""
        for one in self.request_processor:
            one.report_status(code, phrase)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """Return the headers that were set for one answer."""
        return self.request_processor[idx].get_response_headers()

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a header of one answer."""
        self.request_processor[idx].add_response_property(key, value)

    def __iter__(self) -> Iterator[RequestProcessor]:
        return iter(self.request_processor)
