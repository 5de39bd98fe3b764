"""The relay: a stateless UDP forwarder that routes the first packet by its ICE username fragment."""
