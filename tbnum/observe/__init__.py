"""The torch side: sees the training loop and changes nothing in it."""
