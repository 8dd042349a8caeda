"""GPUs as a worker sees them."""
