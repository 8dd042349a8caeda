"""Sans-IO state machines: batching, dispatching, leases, the life of a worker. Events in, instructions out."""
