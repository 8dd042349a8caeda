"""What clients speak, thin over one data plane."""
