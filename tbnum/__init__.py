"""A flight recorder for the numerics of PyTorch training, shown in TensorBoard."""
