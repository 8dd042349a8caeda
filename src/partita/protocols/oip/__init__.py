"""The Open Inference Protocol (KServe V2) over HTTP, with its binary tensor extension."""
