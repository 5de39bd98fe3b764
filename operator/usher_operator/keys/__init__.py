"""The keys of a namespace: made, given to programs, and rotated without a lost call (design D3)."""
