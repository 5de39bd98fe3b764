"""Other regions: installations with a signaling, keys and transceivers of their own (docs/decisions/0026)."""
