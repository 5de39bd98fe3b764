"""Shared by all programs and pure: no sockets, no clocks, no threads."""
