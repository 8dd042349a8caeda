"""The operating system, thinly: clock, CPUs, processes, channels, shared memory."""
