"""The worker and the executor on `tickets`, see protocol.md; used with KOCHI_NEXT=1 alone.

They are to take the places of `worker`, `executor`, `queue`, `packs` and `packing`.
"""
