"""The keys of a namespace: the set that the operator keeps, what programs may know of it, and who holds what."""
