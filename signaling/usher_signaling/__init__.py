"""Signaling: stateless HTTP that takes the offer, chooses a transceiver and returns its answer."""
