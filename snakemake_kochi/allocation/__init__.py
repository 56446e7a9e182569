"""Workers from a batch system: their number, their size, and the commands that request them."""
