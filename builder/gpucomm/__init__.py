"""gpucomm: builds, checks and publishes container images of PyTorch with its collective library."""
