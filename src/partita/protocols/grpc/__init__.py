"""The Open Inference Protocol (KServe V2) over gRPC; needs the extra ``partita[grpc]``."""
