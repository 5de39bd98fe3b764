"""Where relays of one pool keep whose a client address is, so that another relay finds it (docs/wire.md section 9)."""
