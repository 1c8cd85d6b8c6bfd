"""What tbnum costs, measured against the targets of its issues. `make bench` runs all of it."""
