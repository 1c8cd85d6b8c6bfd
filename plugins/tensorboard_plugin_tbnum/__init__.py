"""The TensorBoard plugin of tbnum."""
