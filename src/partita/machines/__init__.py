"""Sans-IO state machines: batching, dispatching, leases, worker life. Events in, instructions out."""
