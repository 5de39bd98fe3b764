"""Cluster ids and pod ids: numbers that no two transceivers ever share (design D13)."""
