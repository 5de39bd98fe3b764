"""How a voice sounds after a bad network: usher and stock aiortc, each as the far end of the same calls."""
