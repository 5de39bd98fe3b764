"""Specs to manifests."""
