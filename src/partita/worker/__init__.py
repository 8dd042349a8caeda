"""The child process: pins itself, then imports, loads one model and runs batches. Holds no policy."""
