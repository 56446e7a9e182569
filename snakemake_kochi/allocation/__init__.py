"""Getting workers from a batch system: how many, how large, and by which commands."""
