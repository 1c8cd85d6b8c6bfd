"""The log: what a step and an event are, in memory and on disk. Loads no torch."""
