"""`usher up`: the real programs as children on this machine, and a supervisor that keeps them running."""
