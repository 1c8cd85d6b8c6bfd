"""The planted faults, by what they break. Importing this registers them."""

from benchmarks.truth.faults import data, gradients, learning_rate, nonfinite, scaler, short, state

__all__ = ["data", "gradients", "learning_rate", "nonfinite", "scaler", "short", "state"]
