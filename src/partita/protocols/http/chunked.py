"""The chunked transfer coding, decoded incrementally and strictly (RFC 9112 §7.1)."""

from partita.core.errors import InvalidRequest, PayloadTooLarge

MAX_LINE_BYTES = 256
MAX_TRAILER_BYTES = 8192
MAX_CHUNKS = 65536
_HEX = frozenset(b"0123456789abcdefABCDEF")


class ChunkedBody:
    """Takes bytes as they come and keeps the data of the chunks."""

    def __init__(self, *, max_bytes: int) -> None:
        self.parts: list[bytes] = []
        self.is_complete = False
        self._max_bytes = max_bytes
        self._total = 0
        self._chunks = 0
        self._left = 0
        self._pending = b""
        self._state = "size"
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Take more bytes; returns what lies beyond the end of the body (empty until it is complete).

        Raises `InvalidRequest` for what is not chunked coding, `PayloadTooLarge` over a limit.
        """
        data = self._pending + data
        self._pending = b""
        at = 0
        while not self.is_complete:
            if self._state == "data":
                at = self._take_data(data, at)
                if self._left:
                    return b""
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._pending = data[at:]
                self._check_line(len(self._pending))
                return b""
            self._line(data[at:end])
            at = end + 2
        return data[at:]

    def _take_data(self, data: bytes, at: int) -> int:
        part = data[at : at + self._left]
        if part:
            self.parts.append(part)
        self._left -= len(part)
        if not self._left:
            self._state = "data end"
        return at + len(part)

    def _check_line(self, length: int) -> None:
        limit = MAX_TRAILER_BYTES if self._state == "trailer" else MAX_LINE_BYTES
        if length > limit:
            raise InvalidRequest(f"a line of the chunked body is longer than {limit} bytes")

    def _line(self, line: bytes) -> None:
        self._check_line(len(line))
        match self._state:
            case "size":
                self._begin_chunk(line)
            case "data end":
                if line:
                    raise InvalidRequest("a chunk is longer than it said")
                self._state = "size"
            case _:
                self._trailer_bytes += len(line) + 2
                self._check_line(self._trailer_bytes)
                self.is_complete = not line

    def _begin_chunk(self, line: bytes) -> None:
        digits = line.split(b";", 1)[0].strip(b" \t")
        if not digits or len(digits) > 16 or not _HEX.issuperset(digits):
            raise InvalidRequest("a chunk does not begin with its size")
        size = int(digits, 16)
        self._chunks += 1
        self._total += size
        if self._total > self._max_bytes:
            raise PayloadTooLarge(f"the body is over max_body_bytes = {self._max_bytes}")
        if self._chunks > MAX_CHUNKS:
            raise PayloadTooLarge(f"the body comes in more than {MAX_CHUNKS} chunks")
        self._left = size
        self._state = "data" if size else "trailer"
