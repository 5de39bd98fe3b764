"""The transceiver: the only owner of a session (ICE, DTLS, SRTP, SCTP, media, lifecycle)."""
