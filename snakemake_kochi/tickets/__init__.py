"""The queue: one rename decides what happens to a ticket. The protocol is in docs/protocol.md.

ticket     what is to be done, and what it needs
capacity   what a worker has of that
names      what the name of a ticket says; where everything is
moving     renames, and what is known after an error
run        who submits: number, submission, heartbeat, collection, adoption
claims     who executes: claim, finish, put back
watching   dead workers and runs; what they held goes back
hand       jobs without a run; cancelling
"""
