"""Cluster ids and pod ids: who may use which, for ever once (design D13)."""
