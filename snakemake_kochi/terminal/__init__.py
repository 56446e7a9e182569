"""The terminal of a job: a pseudo-terminal on its node, and the way to the terminal of a person."""
