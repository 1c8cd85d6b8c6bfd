"""Statistics of tensors: tensors in, small device tensors out; no host sync, no input or output."""
