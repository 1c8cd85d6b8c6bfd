"""Training loops as people write them, each with its own truth: what it did, noted by the loop itself."""
