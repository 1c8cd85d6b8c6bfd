"""How often tbnum is right: planted faults and healthy loops, and what it says of each. See `__main__`."""
