"""Engines of the data path behind one interface."""
