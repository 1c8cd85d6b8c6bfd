"""The TensorBoard plugin of tbnum: the "Numerics" tab. TensorBoard enters through `loader`."""
