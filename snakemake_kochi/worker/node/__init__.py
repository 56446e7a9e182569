"""The node of a worker: what it has, which job gets what of it, and whether it is fit for jobs."""
