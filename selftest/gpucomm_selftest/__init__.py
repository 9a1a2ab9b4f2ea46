"""The self-test of gpucomm: is this machine, with this image, fit for distributed training?

Nothing in this package but the code that runs inside a rank process may import torch.
"""

__version__ = "0.1.0"
