"""The parts of the command `tbnum`: what it is given, what it prints, and a module for each of its commands."""
