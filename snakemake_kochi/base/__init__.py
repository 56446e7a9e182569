"""What the queue stands on; a simulator can take its place.

clock  time, and threads that wait
files  calls of a filesystem that several nodes share
wake   FIFOs by which processes of one computer wake each other
"""
