"""What people see of jobs, queues and workers, and what they do with them.

views      what people see of jobs, queues and workers
runs       runs as other commands see them, and which files are being made in a directory
by_hand    submit, cancel and release by hand
paused     batches whose jobs no worker starts until they are resumed
spreading  duplicates of a point, on several workers
"""
