"""`usher wan`: UDP between two places of this machine, as late and as lossy as between two regions."""
