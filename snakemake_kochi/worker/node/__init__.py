"""The node of a worker: its resources, the share of each job, and whether it is fit for jobs."""
