"""HTTP/1.1 for the head: a thin protocol on httptools and the event loop, with a bridge to ASGI."""
